"""Balancers: keep experts equally loaded by a selection bias that lives outside the trained parameters.

A balancer observes each layer on each device and in each micro-batch, and updates its state once an optimizer step.
`interface` says what it must do; `loads` has those that look at loads alone, `quantiles` and `histogram` those that solve for the bias.
"""

from marin_core.model.config import (
    AuxiliaryLossConfig,
    LocalQuantilesConfig,
    LossFreeConfig,
    MoEConfig,
    NoBalancerConfig,
    QuantileExactConfig,
    QuantileHistogramConfig,
)
from marin_core.model.moe.balance.histogram import QuantileHistogram
from marin_core.model.moe.balance.interface import Balancer, BalancerMetrics, BalancerState
from marin_core.model.moe.balance.loads import AuxiliaryLoss, LossFree, NoBalancer
from marin_core.model.moe.balance.quantiles import LocalQuantiles, QuantileExact

__all__ = [
    "AuxiliaryLoss",
    "Balancer",
    "BalancerMetrics",
    "BalancerState",
    "LocalQuantiles",
    "LossFree",
    "NoBalancer",
    "QuantileExact",
    "QuantileHistogram",
    "make_balancer",
]


def make_balancer(moe: MoEConfig | None) -> Balancer:
    """The balancer that a configuration names; none for a dense model."""
    if moe is None:
        return NoBalancer()
    match moe.balancer:
        case QuantileHistogramConfig() as config:
            return QuantileHistogram(config, moe.experts_per_token)
        case QuantileExactConfig() as config:
            return QuantileExact(config, moe.experts_per_token)
        case LocalQuantilesConfig() as config:
            return LocalQuantiles(config, moe.experts_per_token)
        case LossFreeConfig() as config:
            return LossFree(config)
        case AuxiliaryLossConfig() as config:
            return AuxiliaryLoss(config)
        case NoBalancerConfig():
            return NoBalancer()
