"""Experiments small enough for a test of the whole path; loaded through MARIN_EXPERIMENTS."""
