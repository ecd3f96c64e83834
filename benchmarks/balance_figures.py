"""The figures of `spec/moe.md` §3.2 as printed there, and which steps of which method each one is taken from."""

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.balance_world import Balance

EXPERTS = (64, 384)
SEEDS = range(1000, 1005)


class Printed(NamedTuple):
    """Figures of one method at one number of experts, as text with the printed digits; empty where nothing is printed."""

    cv: str
    cv_deviation: str = ""
    max_violation: str = ""
    least: str = ""
    drop: str = ""
    pooled: str = ""
    keep: str = ""


class Figure(NamedTuple):
    """One row: the mean over steps [first, last) of a method, then over the first `seeds` seeds."""

    name: str
    method: str
    first: int
    last: int
    printed: Mapping[int, Printed]
    seeds: int = 5


def _figure(name: str, method: str, first: int, last: int, few: str, many: str, seeds: int = 5) -> Figure:
    """Of texts with the fields of `Printed` in order, "-" where there is none."""
    printed = {
        experts: Printed(*("" if each == "-" else each for each in text.split()))
        for experts, text in zip(EXPERTS, (few, many), strict=True)
    }
    return Figure(name, method, first, last, printed, seeds)


FIGURES = (
    _figure("plain top-k", "plain", 3, 5, "1.1187 .0760 3.693 .002 .3822 .3822 1", "2.1757 .1564 15.62 0 .5939 .2846 1"),
    _figure(
        "loss-free 1e-3, 200 steps",
        "loss_free_1e-3",
        190,
        200,
        ".2777 .0128 .596 .120 .0403 .0403 .942",
        ".3649 .0051 1.524 .038 .0800 .0122 .953",
        seeds=2,
    ),
    _figure(
        "loss-free 1e-3, 1000 steps",
        "loss_free_1e-3",
        990,
        1000,
        ".1890 .0074 .476 .595 .0254 .0254 .915",
        ".3461 .0022 1.385 .185 .0771 .0099 .940",
        seeds=2,
    ),
    _figure(
        "loss-free 1e-2, 200 steps",
        "loss_free_1e-2",
        190,
        200,
        ".2231 .0014 .574 .514 .0365 .0365 .918",
        ".4543 .0073 2.146 .110 .1169 .0217 .942",
        seeds=2,
    ),
    _figure("exact, after 1 update", "exact", 1, 2, ".2683 .0460 .840 .409 .0484 .0484 .910", ".4480 .0500 1.817 .134 .1176 .0219 .941"),
    _figure("exact, after 2 updates", "exact", 2, 3, ".2477 .0358 .712 .490 .0439 .0439 .911", ".4553 .0729 1.856 .087 .1181 .0245 .936"),
    _figure("exact, 30 steps", "exact", 20, 30, ".2333 .0079 .642 .503 .0394 .0394 .912", ".4332 .0218 2.126 .139 .1083 .0222 .935"),
    _figure(
        "histogram of 1000, live, 30 steps",
        "live_1000",
        20,
        30,
        ".2332 .0078 .642 .503 .0394 .0394 .912",
        ".4333 .0218 2.127 .139 .1084 .0223 .935",
    ),
    _figure(
        "histogram of 10,000, live, 30 steps",
        "live_10000",
        20,
        30,
        ".2332 .0078 .642 .503 .0394 .0394 .912",
        ".4332 .0217 2.126 .139 .1083 .0222 .935",
    ),
    _figure("histogram, after 1 update", "frozen_4", 1, 2, ".2680 .0461 .838 .410 .0484", ".4487 .0494 1.822 .134 .1178 .0220"),
    _figure("histogram, 30 steps", "frozen_4", 20, 30, ".2331 .0077 .641 .504 .0394", ".4333 .0218 2.127 .139 .1084 .0222"),
    _figure("histogram of pad 1, after 1 update", "frozen_1", 1, 2, ".4353 - - - .0960", ".8072 - - - .2288"),
    _figure("histogram of pad 1, after 2 updates", "frozen_1", 2, 3, ".2591 - - - .0473", ".5020 - - - .1332"),
    _figure("histogram of pad 1, after 4 updates", "frozen_1", 4, 5, ".2235 - - - .0335", ".4507 - - - .1097"),
    _figure("histogram of pad 1, 30 steps", "frozen_1", 20, 30, ".2332 .0078 .642 .503 .0394", ".4333 .0218 2.126 .140 .1083 .0222"),
    _figure(
        "local quantiles of 8 shards, 30 steps",
        "local_8",
        20,
        30,
        ".2447 .0082 .691 .498 .0441 .0441 .911",
        ".4627 .0192 2.421 .203 .1191 .0267 .936",
    ),
    _figure(
        "local quantiles of 64 shards, 30 steps",
        "local_64",
        20,
        30,
        ".2593 .0075 .782 .518 .0506 .0506 .911",
        ".5537 .0210 3.151 .198 .1492 .0406 .935",
    ),
    _figure(
        "exact with EMA 0.9, 60 steps",
        "exact_ema",
        50,
        60,
        ".1946 .0133 .521 .581 .0271 .0271 .912",
        ".3495 .0120 1.456 .212 .0787 .0116 .937",
    ),
    _figure("1 sweep of the same batch", "same_1", 5, 10, ".0626 - .146 .90 .0001 .0001 .916", ".1165 - .436 .74 .0085 .0001 .939"),
    _figure("3 sweeps of the same batch", "same_3", 5, 10, ".0195 - .022 .94 0 0 .911", ".0390 - .070 .88 0 0 .936"),
    _figure("10 sweeps of the same batch", "same_10", 5, 10, ".0070 - .006 .96 0 0 .910", ".0135 - .023 .92 0 0 .935"),
    _figure("expert choice", "expert_choice", 0, 3, "0 - 0 1 0 0 .918", "0 - 0 1 0 0 .939"),
)


def steps_of(method: str, figures: tuple[Figure, ...] = FIGURES) -> int:
    """How many steps of a method the figures need."""
    return max(figure.last for figure in figures if figure.method == method)


def disagreements(mean: Balance, deviation: Balance, printed: Printed) -> list[str]:
    """The printed figures that a measured mean and standard deviation don't round to, give or take one unit of the last digit."""
    found = [(name, getattr(mean, name), getattr(printed, name)) for name in Balance._fields]
    found.append(("cv_deviation", deviation.cv, printed.cv_deviation))
    return [f"{name} {value:.5f} is not {text}" for name, value, text in found if text and not _agrees(value, text)]


def _agrees(value: float, text: str) -> bool:
    digits = len(text.partition(".")[2])
    # "0" stands for a share below all that is printed.
    return abs(value - float(text)) <= (1.0 * 10**-digits if digits else 0.0006) * 1.0001
