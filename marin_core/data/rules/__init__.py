"""What is asked of documents: each rule decides from what was measured."""
