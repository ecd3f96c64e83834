"""Digests of arrays that don't depend on how they are spread over devices, computed where the arrays are.

A state of terabytes is on no single host, and hashing its bytes in order would need all of them on one. So an array's digest is made
of sums, which devices form of their parts in any order, exactly, because the numbers are integers modulo 2³².
"""

import math
import operator
from collections.abc import Mapping
from functools import lru_cache, partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

Flat = Mapping[str, Any]
"""Slash-separated path → array."""

HOST_BYTES = 2**20
"""Arrays up to this size are digested by NumPy, since compiling a program for each shape would take longer than reading them."""

_FOLD = 8
"""XLA's CPU backend has vector instructions for sums written out, not for reductions: 7 GB a CPU-second against 0.9. 16 lose it again."""

_ELEMENT, _ROW = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_LANES = ((np.uint32(0xC2B2AE3D), np.uint32(0x27D4EB2F)), (np.uint32(0x165667B1), np.uint32(0x7FEB352D)))
"""Odd constants (of xxHash and of a mixer by C. Wellons): multiplying by one loses nothing."""


def start_digests(arrays: Flat) -> dict[str, Any]:
    """Have the devices compute the digests; returns at once with what `finish_digests` turns into text.

    The arrays may be donated afterwards: JAX runs what was asked for first. With several processes all call it.
    """
    return {path: _start(array) for path, array in arrays.items()}


def finish_digests(started: Mapping[str, Any]) -> dict[str, str]:
    """Path → digest of 16 hex digits; waits for the devices."""
    return {path: "".join(f"{int(lane):08x}" for lane in np.asarray(lanes)) for path, lanes in started.items()}


def _start(array: Any) -> Any:
    if array.nbytes <= HOST_BYTES and array.is_fully_addressable:
        return lanes(np.asarray(array), np)
    sharding = array.sharding
    if sharding.memory_kind == "pinned_host":  # moments that are offloaded: programs compute in the memory of devices
        sharding = sharding.with_memory_kind("device")
        array = jax.device_put(array, sharding)
    everywhere = NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else None
    rows = sharding.shard_shape(array.shape)[-2] if array.ndim > 1 else 1
    return _compiled(math.gcd(rows, _FOLD), everywhere)(array)


@lru_cache(maxsize=32)
def _compiled(fold: int, everywhere: NamedSharding | None) -> Any:
    return jax.jit(partial(lanes, xp=jnp, fold=fold), out_shardings=everywhere)


def lanes(array: Any, xp: Any, fold: int = 1) -> Any:
    """Two sums, uint32 [2], of an array of any shape with elements of 1, 2 or 4 bytes.

    With w the bits of an element, r the number of its row (all indices but the last) and c of its column (the last index),
    column c has the sum s = Σ_r mix(A·w + B·r) mod 2³², and lane k is Σ_c mix(P_k·s + Q_k·c) mod 2³². `mix` and products with odd
    constants are one-to-one, so one changed element, by one bit or many, changes its column's sum and with it both lanes: it is never
    missed. Other damage is missed with the odds of random numbers: 2⁻⁶⁴ where it touches several columns, 2⁻³² within one, as for two
    swapped elements of a column. That guards against damage, not against somebody who looks for a collision: for them the record of
    the run's artifact has SHA-256 of all files.

    Args:
        xp: numpy or jax.numpy; both give the same numbers.
        fold: so many neighbouring rows are added before the sum; a divisor of the rows that a device has. It changes no number.
    """
    words = _words(array, xp)
    words = words.reshape(1) if words.ndim == 0 else words
    *leading, columns = words.shape
    row = xp.zeros((1,) * words.ndim, np.uint32)
    stride = 1
    for axis in reversed(range(len(leading))):
        shape = [1] * words.ndim
        shape[axis] = leading[axis]
        row = row + xp.arange(leading[axis], dtype=np.uint32).reshape(shape) * np.uint32(stride * int(_ROW) % 2**32)
        stride *= leading[axis]
    terms = _mix(words * _ELEMENT + row)
    if fold > 1:
        terms = terms.reshape(*leading[:-1], -1, fold, columns)
        terms = reduce(operator.add, (terms[..., i, :] for i in range(fold)))
    sums = xp.sum(terms, axis=tuple(range(len(leading))), dtype=np.uint32)
    column = xp.arange(columns, dtype=np.uint32)
    return xp.stack([xp.sum(_mix(sums * p + column * q), dtype=np.uint32) for p, q in _LANES])


def _mix(x: Any) -> Any:
    """MurmurHash3's finalizer (A. Appleby, public domain): one-to-one on uint32, and every input bit flips half of the output's."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def _words(array: Any, xp: Any) -> Any:
    """The bits of each element as uint32.

    Raises:
        TypeError: elements of 8 bytes or more, which no state has (JAX makes them only when told to).
    """
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}.get(array.dtype.itemsize)
    if kind is None:
        raise TypeError(f"arrays of {array.dtype} have no digest: elements must have 1, 2 or 4 bytes")
    if array.dtype == np.bool_:
        return array.astype(np.uint32)
    bits = array.view(kind) if xp is np else jax.lax.bitcast_convert_type(array, kind)
    return bits.astype(np.uint32)
