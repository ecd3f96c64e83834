"""Training: optimizer, step, loop, checkpoints, tracking."""
