"""Where raw documents come from: one module a source."""
