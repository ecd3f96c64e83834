"""`marin`: what the Dagster command line does not do."""

from marin_assets.cli.main import main

__all__ = ["main"]
