"""The code location that `workspace.yaml` and `dg` load."""

from marin_assets.experiments import load_experiments
from marin_assets.factory import build_definitions

defs = build_definitions(load_experiments())
