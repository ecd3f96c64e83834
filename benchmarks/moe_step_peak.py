"""The machine's peak for `benchmarks.moe_step`, which runs it as a process: FLOP/s of a large float32 matrix product, JAX's and NumPy's.

Prints one JSON object: `seconds` and `cpu_seconds` of each library's fastest product, and the FLOPs of one.
"""

import json
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.timing import Timing, timed

SIZE = 1024
REPEATS = 20


def fastest(product: Callable[[], object]) -> Timing:
    """The least of either time: whatever took longer was disturbed."""
    product()
    runs = [timed(product)[1] for _ in range(REPEATS)]
    return Timing(min(each.seconds for each in runs), min(each.cpu_seconds for each in runs))


def measure() -> dict[str, object]:
    """Multiply."""
    left, right = np.random.default_rng(0).random((2, SIZE, SIZE), np.float32)
    jax_left, jax_right, product = jax.device_put(left), jax.device_put(right), jax.jit(jax.numpy.matmul)
    found = {"JAX": fastest(lambda: product(jax_left, jax_right).block_until_ready()), "NumPy": fastest(lambda: left @ right)}
    return {"flops": 2 * SIZE**3, **{name: {"seconds": each.seconds, "cpu_seconds": each.cpu_seconds} for name, each in found.items()}}


if __name__ == "__main__":
    print(json.dumps(measure()))
