"""MinHash of many texts at once: 112 multiplications and minima over all their n-grams, in numpy."""

from collections.abc import Sequence

import numpy as np
import xxhash

from marin_core.data.dedup.config import NearDuplicates
from marin_core.data.dedup.word_hashes import Int64, UInt64, document_ngrams, hash_words, mix64


class MinHasher:
    """Band keys of texts.

    The i-th hash of an n-gram x is aᵢ·x modulo 2^64 with odd aᵢ. As x is mixed already, the n-gram with the smallest hash is as good
    as drawn at random for each aᵢ anew: the collision rates of planted pairs follow the theory (tests/data/dedup/test_minhash.py).
    """

    def __init__(self, config: NearDuplicates) -> None:
        self._config = config
        count = config.bands * config.rows
        self._factors = [np.uint64(xxhash.xxh3_64_intdigest(f"minhash/{config.seed}/{index}".encode()) | 1) for index in range(count)]
        rows = [xxhash.xxh3_64_intdigest(f"band/{config.seed}/{row}".encode()) | 1 for row in range(config.rows)]
        self._row_factors = np.array(rows, np.uint64)[None, :, None]

    def keys(self, texts: Sequence[str]) -> tuple[UInt64, Int64]:
        """A key for each band of each text that has an n-gram, and which texts these are: uint64 [bands, M], int64 [M].

        Two texts have equal keys in a band if the minima of all its rows are equal.
        """
        words = hash_words(texts)
        grams, places = document_ngrams(words, self._config.ngram_words)
        counts = np.diff(np.searchsorted(places, words.bounds))
        present = np.flatnonzero(counts)
        minima = self._minima(grams, np.cumsum(counts[present]) - counts[present])
        shaped = minima.reshape(self._config.bands, self._config.rows, len(present))
        return mix64((shaped * self._row_factors).sum(axis=1, dtype=np.uint64)), present

    def _minima(self, grams: UInt64, firsts: Int64) -> UInt64:
        """The smallest value of each hash in each run of n-grams: uint64 [hashes, M]."""
        minima = np.empty((len(self._factors), len(firsts)), np.uint64)
        hashed = np.empty_like(grams)
        if len(firsts):
            for factor, row in zip(self._factors, minima, strict=True):
                np.multiply(grams, factor, out=hashed)
                np.minimum.reduceat(hashed, firsts, out=row)
        return minima
