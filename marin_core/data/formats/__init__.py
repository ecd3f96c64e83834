"""How the files of a raw source become documents: one module a format."""
