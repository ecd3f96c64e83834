"""AdamW and its learning-rate schedule, in Optax."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from marin_core.errors import MarinError
from marin_core.model.transformer import Params
from marin_core.train.config import OptimizerConfig

DECAYED = {
    **dict.fromkeys(
        ("w_q", "w_k", "w_v", "w_o", "w_gate", "w_up", "w_down", "latent_down", "latent_up", "weight", "head_gate", "output"), True
    ),
    **dict.fromkeys(("embedding", "gain", "key_taps", "attention_taps", "feed_forward_taps"), False),
}
"""Whether weight decay acts on a leaf, by the last part of its path; an explicit table, so that a new leaf has to decide."""


def learning_rate_schedule(config: OptimizerConfig, num_steps: int) -> Callable[[jax.Array], jax.Array]:
    """Learning rate (float32) of a zero-based step (int32): warm-up, then the schedule, reaching final_ratio · peak at the last step."""
    warmup, last = config.warmup_steps, max(num_steps - 1, 1)
    decay = max(round(config.decay_fraction * num_steps), 1) if config.schedule == "wsd" else max(last - warmup, 1)

    def schedule(step: jax.Array) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        left = jnp.clip((last - step) / decay, 0.0, 1.0)
        share = 0.5 * (1 - jnp.cos(jnp.pi * left)) if config.schedule == "cosine" else left
        after = config.final_ratio + (1 - config.final_ratio) * share
        warm = (step + 1) / max(warmup, 1)
        return config.learning_rate * jnp.where(step < warmup, warm, after)

    return schedule


def make_optimizer(config: OptimizerConfig, num_steps: int) -> optax.GradientTransformation:
    """The optimizer of a run of `num_steps` updates."""
    clip = [] if config.gradient_clip is None else [optax.clip_by_global_norm(config.gradient_clip)]
    return optax.chain(
        *clip,
        optax.scale_by_adam(config.b1, config.b2, config.eps, mu_dtype=config.first_moment_dtype),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
        optax.scale_by_learning_rate(learning_rate_schedule(config, num_steps)),
    )


def decay_mask(params: Params) -> Params:
    """The tree of `params` with a bool a leaf.

    Raises:
        MarinError: for a leaf that the table doesn't know.
    """

    def decays(path: tuple[jax.tree_util.DictKey, ...], _: object) -> bool:
        name = str(path[-1].key)
        if name not in DECAYED:
            raise MarinError(f"No weight-decay rule for parameter {jax.tree_util.keystr(path)}", advice=f"Add {name!r} to DECAYED.")
        return DECAYED[name]

    return jax.tree_util.tree_map_with_path(decays, params)  # type: ignore[no-any-return]
