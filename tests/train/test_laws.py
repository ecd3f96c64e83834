"""Every figure that the specification prints for a law, to the digits that it prints."""

import pytest

from marin_core.errors import ConfigError
from marin_core.model.counts import parameter_count
from marin_core.model.presets import marin_535b_a23b, preset
from marin_core.train import laws
from marin_core.train.optimizers.config import MuonH
from marin_core.train.schedules import Linear

HERO_STEPS, HERO_BATCH = 390_251, 11_264
HERO_TOKENS = HERO_STEPS * HERO_BATCH * 4096


def printed(value: float, text: str) -> bool:
    """Whether a value, rounded to the digits of a printed figure, is that figure."""
    mantissa = text.split("e")[0].replace(".", "").lstrip("0")
    return float(f"{value:.{len(mantissa) - 1}e}") == float(text)


def test_the_comparison_sees_the_last_digit() -> None:
    assert printed(0.00075934123, "0.00075934")
    assert not printed(0.00075929, "0.00075934")
    assert not printed(6.0441e-15, "6.0446e-15")


@pytest.mark.parametrize(
    ("tokens", "width", "batch", "adam", "muonh", "b2", "eps"),
    [
        (HERO_TOKENS, 6144, HERO_BATCH, "0.00075934", "0.00329047", "0.95", "6.0446e-15"),
        (18_749_985_914_880, 6144, HERO_BATCH, "0.00074876", "0.00324463", "0.95", "6.1684e-15"),
        (47_898_951_680, 768, 1024, "0.00365054", "0.0158190", "0.968491", "1.0340e-15"),
        (128_144_375_808, 1024, 2048, "0.00332567", "0.0144112", "0.95", "1.1959e-15"),
        (380_708_585_472, 1536, 6144, "0.00343602", "0.0148894", "0.95", "1.1901e-15"),
        (926_068_768_768, 2048, 11_264, "0.00309731", "0.0134217", "0.95", "1.3709e-15"),
    ],
)
def test_the_hero_law(tokens: int, width: int, batch: int, adam: str, muonh: str, b2: str, eps: str) -> None:
    rates = laws.hero(tokens, width, batch * 4096)
    assert printed(rates.adam_learning_rate, adam)
    assert printed(rates.learning_rate, muonh)
    assert printed(rates.b2, b2)
    assert printed(rates.eps, eps)


def test_the_hero_law_has_limits() -> None:
    assert pytest.approx(0.7032, abs=5e-5) == 0.999 ** (HERO_BATCH * 4096 / 131_072)
    assert laws.hero(10**6, 64, 10**7).adam_learning_rate == 0.05
    assert laws.hero(10**9, 64, 1024).b2 == 0.9999


def test_the_hero_optimizer_follows_its_law_and_schedule() -> None:
    optimizer = laws.hero_optimizer(HERO_TOKENS, 6144, HERO_BATCH * 4096, HERO_STEPS)
    rates = laws.hero(HERO_TOKENS, 6144, HERO_BATCH * 4096)
    assert optimizer == MuonH(**rates._asdict(), schedule=Linear(warmup_steps=3902, final_ratio=0.05))
    assert optimizer.gradient_clip is None
    end = float(optimizer.schedule.ratio(HERO_STEPS - 1.0, HERO_STEPS))
    assert printed(rates.learning_rate * end, "0.00016452")
    assert printed(rates.adam_learning_rate * end, "0.00003797")


def test_earlier_laws() -> None:
    may = laws.may_adam_rate(HERO_TOKENS, 6144, HERO_BATCH * 4096)
    assert printed(may, "0.000704")
    assert printed(may * laws.MUONH_TO_ADAM, "0.003051")
    v16 = laws.v16_adamh_rate(10**10, 1024, 256)
    assert v16 == pytest.approx(1.63 * 16 / (10**10) ** 0.2813 / 1024**0.3678, rel=1e-12)
    assert laws.v16_adamh_rate(10**10, 1024, 1024) == pytest.approx(2 * v16, rel=1e-12)


@pytest.mark.parametrize(
    ("batch", "tokens", "figures"),
    [
        (64, 2.5e9, ("0.0063", "0.000656", "1.85e-8", "0.9999")),
        (1024, 1e11, ("0.0083326", "0.00041489", "2.9251e-8", "0.9984012")),
        (4096, 6e11, ("0.0097357", "0.00033876", "3.5825e-8", "0.9936201")),
    ],
)
def test_the_delphi_law(batch: int, tokens: float, figures: tuple[str, ...]) -> None:
    rates = laws.delphi(batch, tokens)
    for value, figure in zip((rates.learning_rate, rates.adam_learning_rate, rates.eps, rates.b2), figures, strict=True):
        assert printed(value, figure), figure
    assert (rates.b1, rates.gradient_clip, rates.z_loss) == (0.9, 0.1, 1e-7)


def test_delphi_batches_are_powers_of_two_that_need_no_cap() -> None:
    assert laws.delphi(8192, 1e9).learning_rate == 0.01
    assert [laws.delphi_batch_size(tokens) for tokens in (1e6, 2.5e9, 6e11)] == [8, 16, 4096]
    for exponent in range(24, 48):
        tokens = 1.3 * 2**exponent
        batch = laws.delphi_batch_size(tokens)
        assert batch.bit_count() == 1
        assert 8 <= batch <= 8192
        assert batch == 8 or laws.delphi(batch, tokens).learning_rate < 0.01
    assert laws.delphi_batch_size(1.2e12) == 4096  # 4,470 would round up to 8,192, whose rate exceeds the cap


def test_delphi_shapes() -> None:
    assert [laws.delphi_shape(width).layers for width in (512, 768, 1024, 1280, 1536, 2048)] == [6, 8, 12, 14, 16, 22]
    assert laws.delphi_shape(1024) == (12, 8, 4096)


def test_the_published_ladder() -> None:
    rungs = laws.ladder_published()
    assert [(rung.racks, rung.global_batch_size, rung.steps, rung.tokens) for rung in rungs] == [
        (1, 1024, 11_420, 47_898_951_680),
        (2, 2048, 15_276, 128_144_375_808),
        (6, 6144, 15_128, 380_708_585_472),
        (11, 11_264, 20_072, 926_068_768_768),
    ]
    assert sum(rung.tokens for rung in rungs) == 1_482_820_681_728
    assert laws.run_steps(parameter_count(marin_535b_a23b()).active, HERO_BATCH) == HERO_STEPS
    assert HERO_TOKENS == 18_005_144_633_344
    assert laws.run_steps(10, 1024) == 1


def test_the_ladder_of_a_total() -> None:
    rungs = laws.ladder_total()
    assert [rung.steps for rung in rungs] == [7_132, 9_540, 9_447, 12_535]
    assert [round(rung.tokens / 1e9, 1) for rung in rungs] == [29.9, 80.0, 237.7, 578.3]
    actives = [parameter_count(preset(rung.preset)).active for rung in rungs]
    assert round(926e9 / sum(actives), 1) == 494.0
    assert sum(rung.tokens for rung in rungs) == pytest.approx(926e9, rel=1e-4)


def test_ladders_have_names() -> None:
    assert laws.ladder_by_name("ladder_published") == laws.ladder_published()
    with pytest.raises(ConfigError, match=r"no ladder 'steep'.*\n.*ladder_published, ladder_total"):
        laws.ladder_by_name("steep")


def test_the_size_of_a_checkpoint() -> None:
    size = laws.checkpoint_bytes(533_770_272_768, 788_004_864 + 918_829_056)
    assert [round(part / 1e12, 3) for part in size[:3]] == [2.142, 2.135, 0.014]
    assert round(size.total / 1e12, 2) == 4.29
    both = laws.checkpoint_bytes(533_770_272_768, 788_004_864 + 918_829_056, bfloat16_copy=True)
    assert round(both.total / 1e12, 2) == 5.36
