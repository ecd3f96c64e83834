"""Experiments that browser tests look at; loaded through MARIN_EXPERIMENTS."""
