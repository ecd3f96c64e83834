"""Data from source to batch: ingest, filter, tokenizer, token cache, mixture, loader."""
