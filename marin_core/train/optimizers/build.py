"""From a configuration to an Optax transformation.

Around every optimizer lies the same shell: clip, ask whether the update is to be left out, scale each group by its learning rate. The
shell counts steps itself, also those that are left out, so that rates always follow the step that is logged.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from marin_core.train.optimizers.adam import guarded_adam
from marin_core.train.optimizers.config import AdamW, Lion, Muon, MuonH, Optimizer, Sophia
from marin_core.train.optimizers.groups import group_of, is_decayed
from marin_core.train.optimizers.muonh import scale_by_adamh, scale_by_muonh
from marin_core.train.optimizers.sophia import gauss_newton_bartlett
from marin_core.train.optimizers.spikes import SpikeState, judge, no_spikes

Rates = dict[str, jax.Array]
"""Group → float32 learning rate."""


class OptimizerState(NamedTuple):
    """All that an optimizer remembers.

    Attributes:
        step: int32, steps seen, of which the schedule is a function; a stage with a schedule of its own sets it to 0.
        inner: moments and counts of the groups.
        spikes: what `skip_spikes` remembers; an empty tuple without it.
    """

    step: jax.Array
    inner: Any
    spikes: SpikeState | tuple[()]


def learning_rates(config: Optimizer, num_steps: int) -> Callable[[jax.Array], Rates]:
    """Learning rates of a zero-based step (int32) of a run of `num_steps`: exactly those that `make_optimizer` applies."""
    peaks = _peaks(config)

    def rates(step: jax.Array) -> Rates:
        ratio = config.schedule.ratio(jnp.asarray(step, jnp.float32), num_steps, jnp)
        return {group: jnp.float32(peak) * ratio for group, peak in peaks.items()}

    return rates


def _peaks(config: Optimizer) -> dict[str, float]:
    match config:
        case Muon():
            return {"muon": config.learning_rate, "adam": config.adam_learning_rate or config.learning_rate}
        case MuonH():
            adam = config.adam_learning_rate or config.learning_rate * 3 / 13
            return {"muonh": config.learning_rate, "adamh": config.learning_rate, "adam": adam}
        case _:
            return {config.name: config.learning_rate}


def make_optimizer(config: Optimizer, num_steps: int) -> optax.GradientTransformationExtraArgs:
    """The optimizer of a run of `num_steps` updates.

    `update(gradient, state, params, value=loss)` wants the loss (float32 scalar) where `skip_spikes` is set. Sophia wants
    `sampled_gradient=` too (`gauss_newton_bartlett`).
    """
    inner, rates = _inner(config, num_steps), learning_rates(config, num_steps)

    def init(params: Any) -> OptimizerState:
        return OptimizerState(jnp.int32(0), inner.init(params), () if config.skip_spikes is None else no_spikes(config.skip_spikes))

    def update(
        gradient: Any, state: OptimizerState, params: Any = None, *, value: jax.Array | None = None, **extra: Any
    ) -> tuple[Any, OptimizerState]:
        norm = optax.tree.norm(gradient)
        if config.gradient_clip is not None:
            gradient = _clipped(gradient, norm, config.gradient_clip)
        updates, following = inner.update(gradient, state.inner, params, learning_rates=rates(state.step), **extra)
        spikes = state.spikes
        if config.skip_spikes is not None and isinstance(spikes, SpikeState):
            take, spikes = judge(config.skip_spikes, spikes, value, norm)
            updates = jax.tree.map(lambda leaf: jnp.where(take, leaf, jnp.zeros_like(leaf)), updates)
            following = jax.tree.map(lambda new, old: jnp.where(take, new, old), following, state.inner)
        return updates, OptimizerState(state.step + 1, following, spikes)

    return optax.GradientTransformationExtraArgs(init, update)


def _clipped(gradient: Any, norm: jax.Array, largest: float) -> Any:
    """The gradient, scaled down to the norm `largest` where it has a larger one (as `optax.clip_by_global_norm`, of a known norm)."""
    factor = largest / jnp.maximum(norm, largest)
    return jax.tree.map(lambda leaf: leaf * factor, gradient)


def _inner(config: Optimizer, num_steps: int) -> optax.GradientTransformationExtraArgs:
    """(gradient, state, parameters, learning_rates=) → what is added to the parameters."""
    mu_dtype = config.first_moment_dtype
    match config:
        case AdamW():
            direction = optax.scale_by_adam(config.b1, config.b2, config.eps, mu_dtype=mu_dtype)
        case Lion():
            direction = optax.scale_by_lion(config.b1, config.b2, mu_dtype=mu_dtype)
        case Sophia():
            direction = _sophia(config)
        case Muon():
            direction = _muon(config)
        case MuonH():
            return _muonh(config, num_steps)
    decay = optax.add_decayed_weights(config.weight_decay, mask=lambda params: _map(is_decayed, config, params))
    return optax.chain(direction, decay, _scale_by_rates(config))


def _sophia(config: Sophia) -> optax.GradientTransformationExtraArgs:
    """Optax's Sophia; its rate of −1 leaves the direction as it is, for the shell to scale."""
    return optax.contrib.sophia(
        -1.0,
        config.b1,
        config.b2,
        config.eps,
        weight_decay=0.0,
        gamma=config.gamma,
        update_interval=config.update_interval,
        hessian_diagonal_fn=gauss_newton_bartlett(),
        mu_dtype=config.first_moment_dtype,
    )


def _muon(config: Muon) -> optax.GradientTransformation:
    """Optax's Muon with the scale of arXiv 2502.16982, update_rms·√max(m, n). All axes but the last two are stacks of m×n matrices."""

    def last_two(params: Any) -> Any:
        return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(-2, -1), params)

    mu_dtype = config.first_moment_dtype
    muon = optax.chain(
        optax.contrib.scale_by_muon(beta=config.momentum, mu_dtype=mu_dtype, weight_dimension_numbers=last_two),
        optax.stateless_with_tree_map(lambda leaf, _: config.update_rms * max(leaf.shape[-2:]) ** 0.5 * leaf),
    )
    adam = optax.scale_by_adam(config.b1, config.b2, config.eps, mu_dtype=mu_dtype)
    return optax.partition({"muon": muon, "adam": adam}, lambda params: _map(group_of, config, params))


def _muonh(config: MuonH, num_steps: int) -> optax.GradientTransformationExtraArgs:
    return optax.partition(
        {
            "muonh": scale_by_muonh(config),
            "adamh": scale_by_adamh(config),
            "adam": optax.chain(guarded_adam(config, num_steps), _scale_by_rates(config)),
        },
        lambda params: _map(group_of, config, params),
    )


def _scale_by_rates(config: Optimizer) -> optax.GradientTransformationExtraArgs:
    """−(learning rate of a parameter's group)·direction."""

    def update(updates: Any, state: optax.EmptyState, params: Any = None, *, learning_rates: Rates, **extra: Any) -> tuple[Any, Any]:
        del params, extra
        scaled = jax.tree_util.tree_map_with_path(lambda keys, leaf: -learning_rates[group_of(config, keys)] * leaf, updates)
        return scaled, state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _map(rule: Callable[[Optimizer, Any], Any], config: Optimizer, params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda keys, _: rule(config, keys), params)


def optimizer_metrics(state: Any) -> dict[str, jax.Array]:
    """What an optimizer's state says about its run; jit-able, empty where there is nothing to say.

    Returns:
        skipped_steps: int32, updates left out by `skip_spikes` so far.
        skipped_leaves: int32, updates of single parameters left out so far by MuonH's guards.
        sphere_norm_drift: float32, largest |norm/initial norm − 1| of a sphere, at the parameters that the last update started from.
    """
    found = {name: [value for _, value in optax.tree.get_all_with_path(state, name)] for name in METRICS}
    return {name: METRICS[name](jnp.stack(values)) for name, values in found.items() if values}


METRICS: dict[str, Callable[[jax.Array], jax.Array]] = {"skipped_steps": jnp.sum, "skipped_leaves": jnp.sum, "sphere_norm_drift": jnp.max}
