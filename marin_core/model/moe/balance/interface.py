"""What routing and the training step ask of a balancer."""

from typing import Any, Protocol

import jax

from marin_core.model.moe.router import Routing

BalancerState = dict[str, jax.Array]
"""float32 leaves by name, part of the train state: saved, restored, and applied before an evaluation."""

BalancerMetrics = dict[str, jax.Array]
"""int32 or float32 [L] by name."""


class Balancer(Protocol):
    """How a selection bias comes about; L layers, E experts, A experts a token. All methods are pure."""

    def init(self, layers: int, experts: int) -> BalancerState:
        """The state before the first step."""

    def bias(self, state: BalancerState, layers: int, experts: int) -> jax.Array:
        """float32 [L, E] added to scores for selection; sums to 0 over experts, and no gradient passes."""

    def observe(self, routing: Routing, valid: jax.Array, bias: jax.Array) -> Any:
        """What one layer sees on one device in one micro-batch, without communication. valid is bool [T], bias float32 [E]."""

    def loss(self, routing: Routing, valid: jax.Array) -> jax.Array:
        """float32 scalar, one layer's part of the training loss, from the tokens of all devices; 0 for all that need none."""

    def update(self, state: BalancerState, observed: Any, valid_tokens: jax.Array) -> tuple[BalancerState, BalancerMetrics]:
        """The state of the next step, and metrics.

        Args:
            state: the one whose bias was in force.
            observed: leaves [L, N, …]: what N contributions saw, one for each device and micro-batch of the step.
            valid_tokens: int32 scalar, of all contributions together; 0 leaves the state as it is.
        """
