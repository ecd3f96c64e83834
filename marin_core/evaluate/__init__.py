"""Evaluation: bits per byte, an n-gram baseline, lm-evaluation-harness tasks."""
