"""Shared by all tests: nothing here reaches outside a temporary folder."""

import os
import signal
import sys

import absl.logging
import hypothesis

# How long an example takes says something about the machine, not about the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
os.environ.pop("DAGSTER_HOME", None)
os.environ.pop("WANDB_API_KEY", None)
os.environ["WANDB_MODE"] = "offline"
os.environ["DO_NOT_TRACK"] = "1"
# Meshes of several devices; what names none runs on the first. Child processes get the same: XLA shares out its threads by this number,
# and sums in another order.
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# A shell ignores interrupts for what it runs in the background, and so would everything that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Dagster closes all log handlers when it sets up its own, and absl's then closes a stream that isn't `sys.stderr` any more: pytest's.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__
