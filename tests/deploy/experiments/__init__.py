"""Artifacts of a few seconds each, for a machine that is broken while it makes them; loaded through MARIN_EXPERIMENTS."""
