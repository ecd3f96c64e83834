"""The whole path, as the tests of tests/integration have it."""

from tests.integration.experiments.small import EXPERIMENT

__all__ = ["EXPERIMENT"]
