"""Launching jobs: one contract, and the launcher of the embedded default, local processes."""

from marin_assets.launch.contract import Handle, Launcher, Observation, Standing, State
from marin_assets.launch.local import InlineLauncher, LocalLauncher

__all__ = ["Handle", "InlineLauncher", "Launcher", "LocalLauncher", "Observation", "Standing", "State"]
