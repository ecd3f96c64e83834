"""Shared by all tests: nothing here reaches outside a temporary folder."""

import os

os.environ.pop("DAGSTER_HOME", None)
os.environ.pop("WANDB_API_KEY", None)
os.environ["WANDB_MODE"] = "offline"
os.environ["DO_NOT_TRACK"] = "1"
