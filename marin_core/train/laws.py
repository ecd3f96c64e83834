"""Hyper-parameter laws, ladder budgets and checkpoint sizes as pure functions (`spec/training.md` §2, §4, §10). Imports no JAX.

Letters of the formulas: D tokens of the whole run, d model width, B sequences a batch, T tokens a batch. The laws were fitted by the Marin
project; what they were fitted on, and their R², stands with each.
"""

from collections.abc import Callable
from math import ceil, log2, pow, sqrt
from typing import NamedTuple

from marin_core.errors import ConfigError
from marin_core.model.counts import parameter_count
from marin_core.model.presets import ladder, preset
from marin_core.train.optimizers.config import MuonH
from marin_core.train.schedules import Linear

MUONH_TO_ADAM = 13 / 3
"""MuonH's peak rate over Adam's."""
LADDER_SEQUENCE_LENGTH = 4096
TOKENS_PER_ACTIVE_PARAMETER = 791
"""Of the published ladder and of the large run."""


class MuonHRates(NamedTuple):
    """Peaks, second-moment decay and eps of the groups of MuonH."""

    adam_learning_rate: float
    learning_rate: float
    b2: float
    eps: float


def hero(tokens: int, width: int, tokens_per_batch: int) -> MuonHRates:
    """The law that the large run was launched with (marin #7856, #8003; R² 0.978).

    0.087571·D^−0.3461·d^−0.3448·√T, at most 0.05; β2 = 0.999^(T/131,072) within 0.95…0.9999; ε = 9.676e-18·√(D/T).
    """
    rate = min(0.087571 * pow(tokens, -0.3461) * pow(width, -0.3448) * sqrt(tokens_per_batch), 0.05)
    b2 = _within(0.999 ** (tokens_per_batch / 131_072), 0.95, 0.9999)
    return MuonHRates(rate, MUONH_TO_ADAM * rate, b2, 9.676e-18 * sqrt(tokens / tokens_per_batch))


def hero_optimizer(tokens: int, width: int, tokens_per_batch: int, num_steps: int) -> MuonH:
    """MuonH with the rates of `hero` and the schedule of the large run: 1 % of warm-up, then linear to 5 % of the peak."""
    return MuonH(**hero(tokens, width, tokens_per_batch)._asdict(), schedule=Linear(warmup_steps=num_steps // 100))


def may_adam_rate(tokens: int, width: int, tokens_per_batch: int) -> float:
    """Adam's peak rate by the law before `hero`: 0.06602·D^−0.395·d^−0.150·√T (R² 0.996); MuonH's is 13/3 of it."""
    return 0.06602 * pow(tokens, -0.395) * pow(width, -0.150) * sqrt(tokens_per_batch)


def v16_adamh_rate(tokens: int, width: int, global_batch_size: int) -> float:
    """AdamH's peak rate: 1.63·D^−0.2813·d^−0.3678·√B (186 runs, R² 0.995)."""
    return 1.63 * pow(tokens, -0.2813) * pow(width, -0.3678) * sqrt(global_batch_size)


class DelphiRates(NamedTuple):
    """CompletedAdamH for dense models: peaks of AdamH and Adam, and what goes with them."""

    learning_rate: float
    adam_learning_rate: float
    eps: float
    b2: float
    b1: float = 0.9
    gradient_clip: float = 0.1
    z_loss: float = 1e-7
    warmup_fraction: float = 0.1
    decay_fraction: float = 0.2
    final_ratio: float = 0.0


DELPHI_BATCH, DELPHI_TOKENS = 64, 2.5e9
"""Where Delphi's rates were tuned, at width 512 and sequences of 4,096."""


def delphi(global_batch_size: int, tokens: float) -> DelphiRates:
    """Rates for dense models by batch and token horizon, of sequences of 4,096 tokens.

    With b = B/64 and t = D/2.5e9: lr 0.0063·√b·t^−0.3, at most 0.01; Adam 0.000656·√(b/t); ε 1.85e-8·√(t/b); β2 0.9999^b within
    0.9…0.9999.
    """
    b, t = global_batch_size / DELPHI_BATCH, tokens / DELPHI_TOKENS
    rate, b2 = _delphi_uncapped(global_batch_size, tokens)
    return DelphiRates(min(rate, 0.01), 0.000656 * sqrt(b / t), 1.85e-8 * sqrt(t / b), _within(b2, 0.9, 0.9999))


def delphi_batch_size(tokens: float, sequence_length: int = LADDER_SEQUENCE_LENGTH) -> int:
    """Sequences a batch for a token horizon: D/(2^16·sequence) rounded up to a power of two within 8…8192, then halved until the
    rates need no cap."""
    wanted = tokens / (2**16 * sequence_length)
    batch = int(_within(2 ** ceil(log2(wanted)), 8, 8192))
    while batch > 8:
        rate, b2 = _delphi_uncapped(batch, tokens)
        if rate <= 0.01 and b2 >= 0.9:
            break
        batch //= 2
    return batch


def _delphi_uncapped(global_batch_size: int, tokens: float) -> tuple[float, float]:
    """Learning rate and β2 before their limits."""
    b = global_batch_size / DELPHI_BATCH
    return 0.0063 * sqrt(b) * (DELPHI_TOKENS / tokens) ** 0.3, 0.9999**b


class DelphiShape(NamedTuple):
    """Shape of a dense model of the family."""

    layers: int
    heads: int
    feed_forward_width: int


def delphi_shape(width: int) -> DelphiShape:
    """The depth rule of the ladder, heads of 128, a feed-forward network of four widths."""
    return DelphiShape(ladder(width).layers, width // 128, 4 * width)


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


class Rung(NamedTuple):
    """A run of the scaling ladder."""

    preset: str
    racks: int
    global_batch_size: int
    steps: int

    @property
    def tokens(self) -> int:
        return self.steps * self.global_batch_size * LADDER_SEQUENCE_LENGTH


RACKS = {"ladder_d768": 1, "ladder_d1024": 2, "ladder_d1536": 6, "ladder_d2048": 11}
"""Preset → racks; each works on 1,024 sequences a step."""


def run_steps(active: int, global_batch_size: int, tokens_per_active: float = TOKENS_PER_ACTIVE_PARAMETER) -> int:
    """Steps of a run that sees so many tokens per active parameter: max(1, round(·active/(B·4096)))."""
    return max(1, round(tokens_per_active * active / (global_batch_size * LADDER_SEQUENCE_LENGTH)))


def ladder_published() -> tuple[Rung, ...]:
    """The ladder whose scores are published: 791 tokens per active parameter on every rung."""
    return _rungs(TOKENS_PER_ACTIVE_PARAMETER)


def ladder_total(total_tokens: float = 926e9) -> tuple[Rung, ...]:
    """A ladder that shares out a budget at equal tokens per active parameter: an article's reading of 926e9, which in the published
    table is the largest rung alone. No score of it has a reference."""
    return _rungs(total_tokens / sum(_active(name) for name in RACKS))


LADDERS: dict[str, Callable[[], tuple[Rung, ...]]] = {"ladder_published": ladder_published, "ladder_total": ladder_total}


def ladder_by_name(name: str) -> tuple[Rung, ...]:
    """A ladder by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in LADDERS:
        raise ConfigError(f"There is no ladder {name!r}", advice=f"Choose one of {', '.join(sorted(LADDERS))}.")
    return LADDERS[name]()


def _rungs(tokens_per_active: float) -> tuple[Rung, ...]:
    batches = {name: 1024 * racks for name, racks in RACKS.items()}
    return tuple(Rung(name, RACKS[name], batch, run_steps(_active(name), batch, tokens_per_active)) for name, batch in batches.items())


def _active(name: str) -> int:
    return parameter_count(preset(name)).active


class CheckpointBytes(NamedTuple):
    """Bytes of a checkpoint's arrays, without counts and other scalars."""

    parameters: int
    momentum: int
    moments: int
    working_copy: int

    @property
    def total(self) -> int:
        return sum(self)


def checkpoint_bytes(muonh: int, others: int, *, bfloat16_copy: bool = False) -> CheckpointBytes:
    """Size of a MuonH run's checkpoint in float32.

    Args:
        muonh: parameters of the group `muonh`, which keep one momentum.
        others: parameters of the groups `adamh` and `adam`, which keep two moments.
        bfloat16_copy: whether parameters are stored in bfloat16 too.
    """
    both = muonh + others
    return CheckpointBytes(4 * both, 4 * muonh, 8 * others, 2 * both if bfloat16_copy else 0)
