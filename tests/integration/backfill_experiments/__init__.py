"""Experiments of tests/integration/test_backfill.py."""
