"""What evaluation needs of a model, so that a trained network, an n-gram table and a closed-form test model are scored by the same code."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Scores(NamedTuple):
    """Scores of the tokens of a padded batch; B = batch, S = sequence.

    Attributes:
        logprobs: float32 [B, S], natural log p(tokens[:, s] | tokens[:, :s]); entry 0 is 0 by definition.
        greedy: bool [B, S], whether tokens[:, s] is the most probable token there; entry 0 is False.
    """

    logprobs: npt.NDArray[np.float32]
    greedy: npt.NDArray[np.bool_]


class LanguageModel(Protocol):
    """A causal model over token ids."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def sequence_length(self) -> int:
        """Longest context in tokens."""

    def score(self, tokens: npt.NDArray[np.int32], segment_ids: npt.NDArray[np.int32]) -> Scores:
        """Score int32 [B, S] tokens; positions of different segment_ids don't see each other. Any B and S ≤ sequence_length;
        callers keep the number of distinct shapes small, since each may be compiled once."""
