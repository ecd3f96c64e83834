"""The Dagster code location: turns handles into assets and launches their jobs."""
