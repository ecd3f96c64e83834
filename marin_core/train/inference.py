"""A checkpoint as a language model that evaluation can score with."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from marin_core.errors import ConfigError
from marin_core.evaluate.language_model import LanguageModel, Scores
from marin_core.model.config import TransformerConfig
from marin_core.model.moe.balance import BalancerState, make_balancer
from marin_core.model.transformer import Params, SplitTransformer
from marin_core.train.checkpoint.store import CheckpointStore
from marin_core.train.run_record import read_run
from marin_core.train.step import abstract_state, compiler_options


def load_model(run_dir: Path, step: int) -> LanguageModel:
    """The model after `step` updates of the run in `run_dir`.

    Raises:
        ConfigError: no run there, or no checkpoint of that step.
    """
    config = read_run(run_dir).config
    with CheckpointStore(run_dir) as store:
        if step not in store.steps():
            raise ConfigError(f"{run_dir} has no checkpoint of step {step}", advice=f"Choose one of {store.steps()}.")
        state = store.restore_model(step, abstract_state(config))
    return TrainedModel(config.model, state.params, state.balancer_state)


class TrainedModel:
    """A `LanguageModel` with the pending selection bias applied and no assignment ever dropped; it accumulates nothing."""

    def __init__(self, config: TransformerConfig, params: Params, balancer_state: BalancerState) -> None:
        self._config = config
        self._params = params
        self._bias = make_balancer(config.moe).bias(balancer_state, config.layers, config.moe.experts if config.moe else 0)
        self._score = jax.jit(_scorer(SplitTransformer(config)), compiler_options=compiler_options())

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    @property
    def sequence_length(self) -> int:
        return self._config.max_sequence_length

    def score(self, tokens: npt.NDArray[np.int32], segment_ids: npt.NDArray[np.int32]) -> Scores:
        """Score int32 [B, S] tokens; each distinct shape is compiled once.

        Raises:
            ConfigError: S exceeds `sequence_length`.
        """
        if tokens.shape[1] > self.sequence_length:
            raise ConfigError(
                f"Sequences of {tokens.shape[1]} tokens exceed the model's context of {self.sequence_length}",
                advice="Split them into windows of at most sequence_length tokens.",
            )
        logprobs, greedy = self._score(self._params, self._bias, tokens, segment_ids)
        return Scores(np.asarray(logprobs), np.asarray(greedy))


def _scorer(model: SplitTransformer) -> Callable[[Params, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    def score(params: Params, bias: jax.Array, tokens: jax.Array, segment_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        network = model.bind(params)
        hidden, _ = network(tokens, segment_ids, bias, dropless=True)
        logits = network.logits(hidden[:, :-1])
        targets = tokens[:, 1:]
        target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        logprobs = target_logit - jax.nn.logsumexp(logits, axis=-1)
        greedy = jnp.argmax(logits, axis=-1) == targets
        first = ((0, 0), (1, 0))
        return jnp.pad(logprobs, first), jnp.pad(greedy, first)

    return score
