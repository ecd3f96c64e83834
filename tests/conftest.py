"""Shared by all tests: nothing here reaches outside a temporary folder."""

import os
import signal

os.environ.pop("DAGSTER_HOME", None)
os.environ.pop("WANDB_API_KEY", None)
os.environ["WANDB_MODE"] = "offline"
os.environ["DO_NOT_TRACK"] = "1"
# Meshes of several devices; what names none runs on the first. Child processes get the same: XLA shares out its threads by this number,
# and sums in another order.
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# A shell ignores interrupts for what it runs in the background, and so would everything that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
