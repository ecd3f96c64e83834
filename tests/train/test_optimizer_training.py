"""A tiny mixture of experts learns with every optimizer."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin_core.model.config import MoEConfig
from marin_core.model.presets import moe_tiny
from marin_core.model.transformer import SplitTransformer
from marin_core.train.optimizers.build import make_optimizer, optimizer_metrics
from marin_core.train.optimizers.config import AdamW, Lion, Muon, MuonH, SkipSpikes, Sophia
from marin_core.train.schedules import Cosine, Linear, Wsd

VOCABULARY, LAYERS, STEPS = 32, 1, 100
quick = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
MODEL = SplitTransformer(
    moe_tiny(
        VOCABULARY,
        d_model=16,
        layers=LAYERS,
        heads=2,
        head_dim=8,
        gated_norm_rank=4,
        window=8,
        moe=MoEConfig(experts=4, experts_per_token=2, expert_width=16, latent_dim=8, capacity_factor=4.0),
    )
)
OPTIMIZERS: list[Any] = [
    AdamW(learning_rate=1e-2, schedule=Wsd(warmup_steps=5), skip_spikes=SkipSpikes(window=8)),
    Lion(learning_rate=4e-3, schedule=Cosine(warmup_steps=5), weight_decay=0.1),
    Sophia(learning_rate=1e-2, schedule=Linear(warmup_steps=5)),
    Muon(learning_rate=1e-2, schedule=Wsd(warmup_steps=5)),
    MuonH(learning_rate=5e-2, schedule=Linear(warmup_steps=5), gate_decay=0.02),
]


def batch() -> jax.Array:
    """Sequences [8, 16] that count upwards."""
    starts = np.random.default_rng(0).integers(0, VOCABULARY, size=(8, 1))
    return jnp.asarray((starts + np.arange(16)) % VOCABULARY, jnp.int32)


def log_probabilities(params: Any, tokens: jax.Array) -> jax.Array:
    network = MODEL.bind(params)
    hidden, _ = network(tokens, jnp.zeros_like(tokens), jnp.zeros((LAYERS, 4)), dropless=True)
    return jax.nn.log_softmax(network.logits(hidden))[:, :-1]


def loss_of(params: Any, tokens: jax.Array) -> jax.Array:
    found = jnp.take_along_axis(log_probabilities(params, tokens), tokens[:, 1:, None], axis=-1)
    return -jnp.mean(found)


def sampled_gradient(params: Any, tokens: jax.Array, key: jax.Array) -> tuple[Any, jax.Array]:
    def loss(params: Any) -> jax.Array:
        scores = log_probabilities(params, tokens)
        labels = jax.random.categorical(key, jax.lax.stop_gradient(scores))
        return -jnp.mean(jnp.take_along_axis(scores, labels[..., None], axis=-1))

    return jax.grad(loss)(params), jnp.float32(tokens[:, 1:].size)


gradient_of = quick(jax.value_and_grad(loss_of))


@pytest.fixture(scope="module")
def fresh() -> Any:
    return quick(MODEL.init)(jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("config", OPTIMIZERS, ids=lambda config: config.name)
def test_the_loss_falls(config: Any, fresh: Any) -> None:
    optimizer, tokens = make_optimizer(config, STEPS), batch()

    @quick
    def apply(params: Any, state: Any, gradient: Any, loss: jax.Array) -> tuple[Any, Any]:
        extra = {"sampled_gradient": partial(sampled_gradient, params, tokens)} if isinstance(config, Sophia) else {}
        updates, state = optimizer.update(gradient, state, params, value=loss, **extra)
        return optax.apply_updates(params, updates), state

    params, state, losses = fresh, quick(optimizer.init)(fresh), []
    for _ in range(STEPS):
        loss, gradient = gradient_of(params, tokens)
        params, state = apply(params, state, gradient, loss)
        losses.append(float(loss))
    assert losses[0] == pytest.approx(np.log(VOCABULARY), rel=0.15)
    assert losses[-1] < 0.6 * losses[0], losses
    for name, value in optimizer_metrics(state).items():
        assert float(value) < 1e-5, name
