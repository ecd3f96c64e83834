"""The published mix: a chain of immutable commits of what a model is trained on, in a bucket or folder that anybody may read."""
