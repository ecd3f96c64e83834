"""What a save writes from: arrays that the next step may not change."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from marin_core.train.checkpoint.digest import HOST_BYTES

Flat = dict[str, Any]
"""Slash-separated path → array."""


class Snapshot:
    """A copy of the large arrays of a state on a CPU, in memory that is kept from one save to the next.

    On accelerators Orbax copies the state to the host before the step may have it back. On a CPU that copy is an alias, and the next
    step, which donates the state, makes XLA copy it behind the alias into fresh memory, whose pages the kernel first has to clear: four
    times as slow as copying into memory that is warm.
    """

    def __init__(self) -> None:
        self._kept: Flat = {}

    def of(self, flat: Flat) -> Flat:
        """The state's arrays, and on a CPU a copy of each that is large; valid until the next call."""
        if jax.default_backend() != "cpu":
            return flat
        kept, self._kept = self._kept, {}
        for path, array in flat.items():
            if array.nbytes > HOST_BYTES:
                old = kept.pop(path, None)
                self._kept[path] = _copy_into(old, array) if _alike(old, array) else _copy(array)
        return flat | self._kept


def _alike(old: Any, new: Any) -> bool:
    return old is not None and (old.shape, old.dtype) == (new.shape, new.dtype) and old.sharding.is_equivalent_to(new.sharding, new.ndim)


_copy = jax.jit(jnp.copy)


@partial(jax.jit, donate_argnums=0, keep_unused=True)
def _copy_into(old: jax.Array, new: jax.Array) -> jax.Array:
    """`new`, in the memory of `old`."""
    return jnp.copy(new)
