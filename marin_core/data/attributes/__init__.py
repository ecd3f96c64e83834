"""What is known about documents, in files beside their shards."""
