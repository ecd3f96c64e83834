"""Whether a run is well: rules with named causes over two hours of its rows, and a record of every alert. Imports no JAX."""

from marin_core.train.health.config import HERO, HealthConfig
from marin_core.train.health.history import RunHistory
from marin_core.train.health.monitor import Health, read_alerts
from marin_core.train.health.rules import RULE, RULES, Alert, Rule, diagnose

__all__ = ["HERO", "RULE", "RULES", "Alert", "Health", "HealthConfig", "Rule", "RunHistory", "diagnose", "read_alerts"]
