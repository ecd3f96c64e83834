"""The lab's code location, by a clock that a test moves."""

from marin_assets.experiments import load_experiments
from marin_assets.factory import build_definitions
from tests.integration import standing_clock

standing_clock.install()
defs = build_definitions(load_experiments(), clock=standing_clock.now)
