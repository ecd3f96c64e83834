"""The unit that the loader hands to the train step."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Batch(NamedTuple):
    """One batch of token sequences; B = batch, S = sequence.

    Attributes:
        tokens: int32 [B, S].
        segment_ids: int32 [B, S], the number of EOS tokens before the position; attention never crosses a change.
        loss_weight: float32 [B, S], weight of predicting `tokens[:, s + 1]` at position s; 0 on the last position.
    """

    tokens: npt.NDArray[np.int32]
    segment_ids: npt.NDArray[np.int32]
    loss_weight: npt.NDArray[np.float32]
