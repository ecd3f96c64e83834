"""HTML, PDF and wiki markup as text."""
