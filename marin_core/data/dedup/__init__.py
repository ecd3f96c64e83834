"""Documents and paragraphs that repeat others, marked and never deleted."""
