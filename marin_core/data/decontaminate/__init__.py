"""Documents that hold text of an evaluation."""
