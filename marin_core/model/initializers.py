"""How parameters start."""

import jax
import jax.numpy as jnp
from flax import nnx


def matrix(rngs: nnx.Rngs, shape: tuple[int, ...], std: float) -> nnx.Param[jax.Array]:
    """A float32 matrix (or stack) from a normal of `std` cut at ±3·std.

    The cut is not corrected for, so the effective σ is 0.986578·std (`spec/moe.md` §1.1; init norms of marin #8435).
    """
    return nnx.Param(std * jax.random.truncated_normal(rngs.params(), -3.0, 3.0, shape, jnp.float32))


def zeros(shape: tuple[int, ...]) -> nnx.Param[jax.Array]:
    """A float32 parameter that starts at 0."""
    return nnx.Param(jnp.zeros(shape, jnp.float32))


def ones(shape: tuple[int, ...]) -> nnx.Param[jax.Array]:
    """A float32 gain that starts at 1."""
    return nnx.Param(jnp.ones(shape, jnp.float32))


@jax.custom_vjp
def _multiply(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x @ weight


def _multiply_forward(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _multiply(x, weight), (x, weight)


def _multiply_backward(saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight = saved
    # The barrier keeps XLA:CPU from computing elementwise producers in transposed order for the weight gradient, which strides
    # through memory; behind it the transpose folds into the product.
    rows, d_rows = jax.lax.optimization_barrier((x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])))
    return dy @ weight.T, rows.T @ d_rows


_multiply.defvjp(_multiply_forward, _multiply_backward)


def project(x: jax.Array, weight: nnx.Param[jax.Array]) -> jax.Array:
    """x [..., D] · weight [D, F] in the type of the activations."""
    return _multiply(x, weight[...].astype(x.dtype))
