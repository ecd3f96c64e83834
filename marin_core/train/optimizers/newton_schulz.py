"""The nearest orthogonal matrix, roughly: five Newton–Schulz steps on every matrix of a stack, laid out so that no rack exchanges more
than it must.

A device works on whole matrices. Experts already lie by the expert, so nothing moves; other stacks are spread over their layers for the
time of it, padded with zero matrices where the layers don't divide.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from marin_core.model.mesh import EXPERT, has_mesh, mesh_size

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of a quintic that lifts small singular values fast and leaves all of them near 1 (Keller Jordan's Muon)."""
STEPS = 5
EPS = 1e-8
EVERYWHERE = P()


def newton_schulz(x: jax.Array, dtype: Any = jnp.bfloat16) -> jax.Array:
    """Orthogonalise one matrix.

    Args:
        x: float32 [m, n].
        dtype: in which products are taken.

    Returns:
        `dtype` [m, n], with singular values between about 0.7 and 1.2 where x has any that isn't tiny beside its norm; 0 for x = 0.
    """
    a, b, c = COEFFICIENTS
    norm = jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32))))
    y = (x.astype(dtype) / (norm + EPS)).astype(dtype)
    tall = y.shape[0] > y.shape[1]
    y = y.T if tall else y

    def step(_: int, y: jax.Array) -> jax.Array:
        gram = y @ y.T
        return a * y + (b * gram + c * (gram @ gram)) @ y

    found: jax.Array = jax.lax.fori_loop(0, STEPS, step, y)
    return found.T if tall else found


def orthogonalize(x: jax.Array, lies: P = EVERYWHERE, dtype: Any = jnp.bfloat16) -> jax.Array:
    """Orthogonalise every matrix of a stack x [m, n], [L, m, n] or [L, E, m, n], each by itself.

    Args:
        lies: where x lies on the ambient mesh, and what is returned.
    """
    if x.ndim == 2:
        return _pinned(newton_schulz(_pinned(x, EVERYWHERE), dtype), lies)
    if x.ndim == 3:
        layers, shards = x.shape[0], mesh_size(EXPERT)
        # Pinned on both sides of a move, so that XLA exchanges parts of matrices; with layers that don't divide it would gather them all.
        padded = _pinned(jnp.pad(x, ((0, -layers % shards), (0, 0), (0, 0))), lies)
        found = jax.vmap(lambda matrix: newton_schulz(matrix, dtype))(_pinned(padded, P(EXPERT)))
        return _pinned(_pinned(found, P(EXPERT)), lies)[:layers]
    spec = P(EXPERT) if x.shape[1] % mesh_size(EXPERT) == 0 else EVERYWHERE

    def layer(experts: jax.Array) -> jax.Array:
        return jax.vmap(lambda matrix: newton_schulz(matrix, dtype))(_pinned(experts, spec))

    # One layer after the other: temporaries of all layers at once would be larger than the parameters.
    orthogonal: jax.Array = jax.lax.map(layer, x)
    return orthogonal


def _pinned(x: jax.Array, spec: P) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, spec) if has_mesh() else x
