"""Experiments whose jobs run on the bed; loaded through MARIN_EXPERIMENTS."""
