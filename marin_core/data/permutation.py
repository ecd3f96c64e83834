"""Seeded permutations of [0, n) that are computed index by index, and exact proportions block by block. Integers only."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import xxhash

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]

_Step = Callable[[UInt64], UInt64]

ROUNDS = 6
GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = 2**64 - 1

UNIT_BITS = 40
UNIT = 1 << UNIT_BITS
"""Weights are integers that sum to 2^40."""
PHASE_STEP = 679535556991
"""u_j = j · PHASE_STEP mod 2^40 spreads the rounding of the blocks evenly (2^40 divided by the golden ratio)."""


def permutation_key(seed: int, component: str, epoch: int, purpose: str) -> int:
    """64-bit key of one permutation: xxh3-64 of `seed/component/epoch/purpose`."""
    return xxhash.xxh3_64_intdigest(f"{seed}/{component}/{epoch}/{purpose}".encode())


class Permutation:
    """A bijection of [0, n): six Feistel rounds on two halves of b bits, walked along its cycle until inside.

    b = max(1, ⌈bits(n − 1)/2⌉); a round is (l, r) ← (r, l ⊕ (mix(r + kᵢ) mod 2^b)) with splitmix64's finaliser as mix. A round
    that multiplies modulo 2^k, as Marin's, makes the lowest output bit a function of two input bits (marin #1800, #1803).
    """

    def __init__(self, n: int, key: int) -> None:
        if n < 1:
            raise ValueError(f"a permutation needs at least one element, got n = {n}")
        self.n = n
        self._bits = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._bits)) - 1)
        self._keys = _mix(np.array([(key + i * GOLDEN) & _MASK64 for i in range(1, ROUNDS + 1)], np.uint64))

    def __call__(self, indices: Int64) -> Int64:
        """Images of int64 indices in [0, n)."""
        return self._walk(indices, self._forward)

    def inverse(self, images: Int64) -> Int64:
        """Indices that have these images."""
        return self._walk(images, self._backward)

    def _walk(self, values: Int64, step: _Step) -> Int64:
        # The domain 2^(2b) is at most four times n (eight for tiny n), so few values walk on, and every cycle comes back inside.
        out = step(np.asarray(values, np.int64).astype(np.uint64))
        outside = np.flatnonzero(out >= self.n)
        while outside.size:
            walked = step(out[outside])
            out[outside] = walked
            outside = outside[walked >= self.n]
        return out.astype(np.int64)

    def _forward(self, values: UInt64) -> UInt64:
        left, right = values >> self._bits, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right + key) & self._mask)
        return (left << self._bits) | right

    def _backward(self, values: UInt64) -> UInt64:
        left, right = values >> self._bits, values & self._mask
        for key in self._keys[::-1]:
            left, right = right ^ (_mix(left + key) & self._mask), left
        return (left << self._bits) | right


def _mix(x: UInt64) -> UInt64:
    """splitmix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def integer_weights(weights: Sequence[float]) -> list[int]:
    """Weights as integers with sum 2^40, by largest remainder; equal remainders in the order given. Exact arithmetic."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    scaled = [weight * UNIT / total for weight in exact]
    floors = [int(share) for share in scaled]
    by_remainder = sorted(range(len(scaled)), key=lambda i: (floors[i] - scaled[i], i))
    for index in by_remainder[: UNIT - sum(floors)]:
        floors[index] += 1
    return floors


class Apportionment:
    """How many sequences each component has in each mixture block, and in all blocks before it.

    Component i has ⌊(C_i + u_j)/2^40⌋ − ⌊(C_{i−1} + u_j)/2^40⌋ sequences of block j, C_i = M·(q_1 + … + q_i). A block always sums
    to M, and the sums over a prefix of blocks are O(log) by a floor sum, so resuming at any step costs the same.
    """

    def __init__(self, weights: Sequence[int], block_sequences: int) -> None:
        if sum(weights) != UNIT:
            raise ValueError(f"integer weights sum to {sum(weights)}, not 2^40")
        self.block_sequences = block_sequences
        self._bounds = [block_sequences * sum(weights[:i]) for i in range(len(weights) + 1)]

    def block_bounds(self, block: int) -> Int64:
        """int64 [components + 1]: component i has the slots [bounds[i], bounds[i + 1]) of the block."""
        phase = block * PHASE_STEP % UNIT
        return np.array([(bound + phase) >> UNIT_BITS for bound in self._bounds], np.int64)

    def counts_before(self, block: int) -> list[int]:
        """Sequences of each component in blocks 0 … block − 1.

        With C_i = Q·2^40 + c: [u_j + c ≥ 2^40] = ⌊(j·a + c)/2^40⌋ − ⌊j·a/2^40⌋, so Σ over j < blocks of ⌊(C_i + u_j)/2^40⌋ is Q·blocks
        plus two floor sums, the second of which is the same for all bounds.
        """
        sums = [(bound >> UNIT_BITS) * block + floor_sum(block, UNIT, PHASE_STEP, bound & (UNIT - 1)) for bound in self._bounds]
        return [high - low for low, high in pairwise(sums)]


def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Σ over i < n of ⌊(a·i + b)/m⌋ for a, b ≥ 0, by Euclid's algorithm."""
    total = 0
    while True:
        total += (n - 1) * n // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        last = a * n + b
        if last < m:
            return total
        n, b = divmod(last, m)
        m, a = a, m
