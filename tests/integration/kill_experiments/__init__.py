"""Experiments of tests/integration/test_backfill_kills.py."""
