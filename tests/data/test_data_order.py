"""The order of a run: each sequence as the mixture says, from any step, for any number of hosts, whatever the batches."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.data.cache import LedgerPart
from marin_core.data.config import MixtureConfig, PhaseConfig, phase_start
from marin_core.data.mixture import Component, Mixture, Phase
from marin_core.data.order import DataOrder, check_order
from marin_core.data.part import PartPolicy, PartTokenizer
from marin_core.data.permutation import Int64, Permutation, integer_weights, permutation_key
from marin_core.data.run_steps import PlainStage, RunSteps
from marin_core.errors import ConfigError
from marin_core.train.schedules import BatchSchedule, BatchStage

LENGTH = 8
Weights = Mapping[str, float]


def mixture(tokens: Mapping[str, int], phases: Sequence[tuple[str | int, Weights]], **changes: object) -> Mixture:
    """A mixture of components with so many tokens, of which nothing is on disk."""
    names = sorted(tokens)
    whole = [[weights.get(name, 0.0) for name in names] for _, weights in phases]
    values: dict[str, object] = {
        "sequence_length": LENGTH,
        "seed": 5,
        "window_blocks": 2,
        "block_sequences": 64,
        "stop": "restart",
        "max_epochs": 8.0,
        "target_tokens": None,
        "mask_bos_target": False,
        "pack": "stream",
        "phases": [
            Phase(
                start=start,
                weights=dict(zip(names, weights, strict=True)),
                integer_weights=dict(zip(names, integer_weights(weights), strict=True)),
            )
            for (start, _), weights in zip(phases, whole, strict=True)
        ],
        "tokenizer": PartTokenizer(digest="0", probe_digest="0", vocab_size=300, library="none"),
        "policy": PartPolicy(bos="prepend", eos="append"),
        **{"bos_id": 0, "eos_id": 1, "pad_id": 2},
        "components": {
            name: Component(
                tokens=size,
                documents=1,
                bytes=size,
                sequences=size // LENGTH,
                licenses=(),
                parts=(LedgerPart("0", "0", size, 1, size),),
            )
            for name, size in sorted(tokens.items())
        },
    }
    return Mixture.from_json(values | changes)


# A reference that walks: no formula for a prefix, no seek -----------------------------------------------------------


class WalkedComponent:
    """Hands out a component's sequences one after the other, window by window."""

    def __init__(self, mixed: Mixture, name: str, length: int) -> None:
        self.mixed, self.name, self.length = mixed, name, length
        self.epoch, self.window, self.waiting = 0, 0, list[int]()

    def windows(self, epoch: int) -> list[list[int]]:
        """Blocks of each window of an epoch."""
        tokens, width = self.mixed.components[self.name].tokens, self.mixed.window_blocks
        blocks = math.ceil(tokens // self.mixed.sequence_length / 256)
        order = Permutation(blocks, permutation_key(self.mixed.seed, self.name, epoch, "blocks"))(np.arange(blocks)).tolist()
        return [order[start : start + width] for start in range(0, blocks, width)]

    def next(self) -> tuple[int, int]:
        """Epoch and number of the next sequence."""
        while not self.waiting:
            windows = self.windows(self.epoch)
            if self.window == len(windows):
                self.epoch, self.window = self.epoch + 1, 0
                continue
            inside = [sequence for block in windows[self.window] for sequence in self.sequences_of(block)]
            if inside:
                key = permutation_key(self.mixed.seed, self.name, self.epoch, f"window/{self.window}")
                self.waiting = [inside[place] for place in Permutation(len(inside), key)(np.arange(len(inside)))]
            self.window += 1
        return self.epoch, self.waiting.pop(0)

    def sequences_of(self, block: int) -> list[int]:
        """Whole sequences within the tokens of a block."""
        tokens, size = self.mixed.components[self.name].tokens, 256 * self.mixed.sequence_length
        return list(range(block * size // self.length, min((block + 1) * size, tokens) // self.length))

    def change(self, length: int) -> None:
        """Go on with the next window, in sequences of another length."""
        self.waiting, self.length = [], length


def walked(
    mixed: Mixture, stages: Sequence[PlainStage], first_steps: Sequence[int], num_steps: int
) -> Iterator[list[tuple[int, int, int]]]:
    """Component, epoch and sequence of every row of every batch."""
    components = [WalkedComponent(mixed, name, stages[0].sequence_length) for name in mixed.components]
    owners: list[int] = []
    block = 0
    for step in range(num_steps):
        stage = [stage for stage in stages if stage.first_step <= step][-1]
        if stage.first_step == step and stage.sequence_length != components[0].length:
            for component in components:
                component.change(stage.sequence_length)
        rows = []
        for _ in range(stage.global_batch_size):
            if not owners:
                phase = sum(first <= step for first in first_steps) - 1
                owners = block_owners(mixed, phase, block)
                block += 1
            owner = owners.pop(0)
            rows.append((owner, *components[owner].next()))
        yield rows


def block_owners(mixed: Mixture, phase: int, block: int) -> list[int]:
    """Component of each sequence of a mixture block, by the formula of `spec/data.md` §7.3."""
    size, before, slots = mixed.block_sequences, 0, list[int]()
    for index, integer in enumerate(mixed.phases[phase].integer_weights.values()):
        shift = block * 679535556991 % 2**40
        slots += [index] * ((size * (before + integer) + shift) // 2**40 - (size * before + shift) // 2**40)
        before += integer
    assert len(slots) == size
    order = Permutation(size, permutation_key(mixed.seed, "mixture", 0, f"order/{block}"))(np.arange(size))
    return [slots[place] for place in order]


# A run of 10,000 steps ----------------------------------------------------------------------------------------------

STEPS = 10_000
TOKENS = {"books": 2_900 * LENGTH + 3, "code": 9_001 * LENGTH, "web": 14_500 * LENGTH + 7}
PHASES: list[tuple[str | int, Weights]] = [
    ("0", {"web": 0.7, "code": 0.3}),
    ("0.3", {"web": 0.45, "code": 0.25, "books": 0.3}),
    (8_008, {"code": 0.6, "books": 0.4}),
]
STAGES = [PlainStage(4, LENGTH), PlainStage(8, LENGTH, 2_000), PlainStage(12, LENGTH, 7_000)]
RUN = mixture(TOKENS, PHASES)


@cache
def enumerated() -> list[npt.NDArray[np.int64]]:
    """Rows of every step of the run: int64 [B, 3] of component, epoch and sequence."""
    order = DataOrder(RUN, STAGES, STEPS)
    return [np.stack(order.places(step), axis=1) for step in range(STEPS)]


def test_a_run_of_ten_thousand_steps_is_exactly_what_the_mixture_says() -> None:
    order = DataOrder(RUN, STAGES, STEPS)
    assert order.first_steps == (0, 3_000, 8_008)
    for step, rows in enumerate(walked(RUN, STAGES, order.first_steps, STEPS)):
        assert enumerated()[step].tolist() == [list(row) for row in rows], step


def test_weights_change_exactly_at_the_step_of_a_phase() -> None:
    """Books first come at step 3,000, the last of the web at step 8,007; in between every block has its exact share."""
    steps = np.repeat(np.arange(STEPS), [len(rows) for rows in enumerated()])
    components = np.concatenate(enumerated())[:, 0]
    books, web = steps[components == 0], steps[components == 2]
    assert 3_000 <= books.min() < 3_000 + 64 // 8
    assert 8_008 - 64 // 12 - 1 <= web.max() < 8_008
    for first, end, weights in ((0, 3_000, [0, 0.3, 0.7]), (3_000, 8_008, [0.3, 0.25, 0.45]), (8_008, STEPS, [0.4, 0.6, 0])):
        inside = components[(steps >= first) & (steps < end)]
        for block in inside[: len(inside) // 64 * 64].reshape(-1, 64):
            assert (np.abs(np.bincount(block, minlength=3) - 64 * np.array(weights)) < 1).all()


def test_nothing_repeats_within_an_epoch_and_nothing_is_read_more_often_than_allowed() -> None:
    seen = Counter(map(tuple, np.concatenate(enumerated()).tolist()))
    assert max(seen.values()) == 1
    epochs = check_order(RUN, STEPS, STAGES)
    times = Counter((component, sequence) for component, _, sequence in seen)
    for index, name in enumerate(RUN.components):
        n = RUN.components[name].sequences
        counts = [times[index, sequence] for sequence in range(n)]
        assert sum(counts) == round(epochs[name] * n)
        assert {min(counts), max(counts)} <= {math.floor(epochs[name]), math.ceil(epochs[name])}
        assert max(counts) <= RUN.max_epochs


def test_any_resume_point_and_any_number_of_hosts_gives_the_same_batches() -> None:
    steps = np.random.default_rng(0).permutation(STEPS)[:200].tolist()
    borders = [0, 1_999, 2_000, 2_999, 3_000, 6_999, 7_000, 8_007, 8_008, STEPS - 1]
    for number, step in enumerate([*steps, *borders]):
        if number % 20 == 0:
            order = DataOrder(RUN, STAGES, STEPS)
        for hosts in (1, 2, 4):
            pieces = [np.stack(order.places(step, host, hosts), axis=1) for host in range(hosts)]
            assert np.array_equal(np.concatenate(pieces), enumerated()[step])


def test_eleven_hosts_read_the_batch_of_one_over_phases_batch_sizes_and_lengths() -> None:
    stages = [PlainStage(44, LENGTH), PlainStage(88, LENGTH, 1_600), PlainStage(44, 2 * LENGTH, 3_200)]
    phases = [*PHASES[:2], ("0.8", PHASES[2][1])]
    order = DataOrder(mixture({name: 9 * size for name, size in TOKENS.items()}, phases), stages, 10_000)
    assert order.first_steps == (0, 3_000, 8_000)
    for step in (0, 1_599, 1_600, 2_999, 3_000, 3_199, 3_200, 7_999, 8_000, 9_999):
        whole = order.places(step)
        for hosts in (2, 4, 11):
            pieces = zip(*(order.places(step, host, hosts) for host in range(hosts)), strict=True)
            assert all(np.array_equal(np.concatenate(piece), values) for piece, values in zip(pieces, whole, strict=True))


def test_counts_before_a_step_are_those_of_the_steps_before_it() -> None:
    order = DataOrder(RUN, STAGES, STEPS)
    totals = np.zeros(3, np.int64)
    checked = {0, 1, 1_999, 2_000, 3_000, 3_001, 7_777, 8_008, STEPS}
    for step in range(STEPS + 1):
        if step in checked:
            assert list(order.consumed(step).values()) == totals.tolist(), step
        if step < STEPS:
            totals += np.bincount(enumerated()[step][:, 0], minlength=3)


def test_the_composition_tells_expected_and_realised_tokens_of_each_phase() -> None:
    order = DataOrder(RUN, STAGES, STEPS)
    rows = order.composition(5_000)
    assert [(row["phase"], row["first_step"], row["component"]) for row in rows] == [
        (0, 0, "code"), (0, 0, "web"), (1, 3_000, "books"), (1, 3_000, "code"), (1, 3_000, "web"),
    ]  # fmt: skip
    sequences = [2_000 * 4 + 1_000 * 8, 2_000 * 8]
    for row in rows:
        phase, weights = int(row["phase"]), PHASES[int(row["phase"])][1]
        assert row["expected_tokens"] == round(sequences[phase] * LENGTH * weights[str(row["component"])])
        assert abs(int(row["expected_tokens"]) - int(row["realised_tokens"])) <= 4 * LENGTH
    realised = [sum(int(row["realised_tokens"]) for row in rows if row["phase"] == phase) for phase in (0, 1)]
    assert realised == [count * LENGTH for count in sequences]
    assert rows[-1]["epochs"] == round(order.consumed(5_000)["web"] / 14_500, 6)
    assert order.composition(0) == []
    assert {row["phase"] for row in order.composition(STEPS)} == {0, 1, 2}


def test_a_late_step_costs_what_an_early_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are made for a step, its counts and its composition don't grow with the step."""
    large = mixture({name: size << 24 for name, size in TOKENS.items()}, [("0", {"web": 1.0}), ("0.5", PHASES[1][1])])
    order = DataOrder(large, [PlainStage(64, LENGTH), PlainStage(128, LENGTH, 10**8)], 2 * 10**9)
    made: list[int] = []
    make = order._blocks._make_block

    def counted(block: int) -> tuple[Int64, Int64]:
        made.append(block)
        return make(block)

    monkeypatch.setattr(order._blocks, "_block", lru_cache(4)(counted))
    for step in (10**3, 10**6, 10**9 + 1, 2 * 10**9 - 1):
        order._blocks._block.cache_clear()
        made.clear()
        order.places(step)
        order.consumed(step)
        order.composition(step)
        assert len(made) <= 2


def test_the_order_of_a_mixture_is_the_one_that_models_were_trained_on() -> None:
    """An anchor: it changes only together with the schema of mixtures."""
    order = DataOrder(mixture(TOKENS, [("0", {"books": 0.2, "code": 0.3, "web": 0.5})]), [PlainStage(32, LENGTH)])
    digest = xxhash.xxh3_64()
    for step in (0, 1, 2, 500, 4_321):
        digest.update(np.concatenate(order.places(step)).astype("<i8").tobytes())
    assert digest.hexdigest() == "208b34ca16c8d059"


def test_the_batch_schedule_of_a_training_is_what_the_order_takes() -> None:
    stages = [BatchStage(**stage._asdict()) for stage in STAGES]
    order = DataOrder(RUN, BatchSchedule(stages=tuple(stages)).stages, STEPS)
    assert np.array_equal(np.stack(order.places(7_000), axis=1), enumerated()[7_000])


# Where phases begin -------------------------------------------------------------------------------------------------

MAIN = "108000/390251"
ANCHORS = [
    (390_251, 11_264, {"0.8": 312_192, MAIN: 108_000}),
    (390_139, 11_264, {"0.8": 312_096}),
    (406_395, 11_264, {"0.8": 325_104}),
    (11_420, 1_024, {"0.8": 9_120, MAIN: 3_120}),
    (15_276, 2_048, {"0.8": 12_216, MAIN: 4_224}),
    (15_128, 6_144, {"0.8": 12_096, MAIN: 4_184}),
    (20_072, 11_264, {"0.8": 16_032, MAIN: 5_520}),
]


@pytest.mark.parametrize(("num_steps", "batch", "expected"), ANCHORS)
def test_phases_begin_where_they_did_in_the_published_runs(num_steps: int, batch: int, expected: Mapping[str, int]) -> None:
    for share, step in expected.items():
        tokens = {"a": 10**9, "b": 10**13}
        run = mixture(tokens, [("0", {"b": 1.0}), (share, {"a": 1e-9, "b": 1 - 1e-9})], block_sequences=49_152)
        assert DataOrder(run, [PlainStage(batch, LENGTH)], num_steps).first_steps == (0, step)


@st.composite
def staged(draw: st.DrawFn) -> list[PlainStage]:
    firsts = sorted(draw(st.sets(st.integers(1, 60), max_size=3)))
    return [PlainStage(draw(st.integers(1, 24)), LENGTH, first) for first in (0, *firsts)]


@settings(max_examples=300, deadline=None)
@given(stages=staged(), block=st.integers(1, 48), step=st.integers(0, 120))
def test_a_phase_begins_with_the_last_block_before_its_share_else_the_first(stages: list[PlainStage], block: int, step: int) -> None:
    steps = RunSteps(stages)
    grid = [number for number in range(1, 400) if steps.sequences_before(number) % block == 0]
    expected = max((number for number in grid if number <= step), default=min(grid, default=None))
    assert steps.block_start(block, step) == expected


def test_phases_that_do_not_fit_the_run_are_refused_with_what_would() -> None:
    def refused(match: str, second: str | int, *more: str | int, num_steps: int | None = 100, batch: int = 4) -> None:
        phases = [("0", {"web": 1.0}), *((start, {"code": 1.0}) for start in (second, *more))]
        with pytest.raises(ConfigError, match=match):
            DataOrder(mixture(TOKENS, phases), [PlainStage(batch, LENGTH)], num_steps)

    refused("step 50 on doesn't begin with a mixture block of 64(.|\n)*is 48", 50)
    refused("must begin before the run of 10 steps ends(.|\n)*step that does is 16", "0.5", num_steps=10)
    refused("must begin before the run of 100 steps ends(.|\n)*step that does is 160", 160)
    refused("from 0.55 on would begin at step 48, the one before it at 48", "0.5", "0.55")
    refused("num_steps is not given", "0.5", num_steps=None)
    with pytest.raises(ConfigError, match="no step does"):
        DataOrder(mixture(TOKENS, [*PHASES[:1], (10, {"web": 1.0})]), [PlainStage(3, LENGTH), PlainStage(64, LENGTH, 9)], 60)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("0.8", "0.8"),
        ("0.80", "0.8"),
        ("4/5", "0.8"),
        (Fraction(4, 5), "0.8"),
        (MAIN, MAIN),
        (0, "0"),
        ("0.0", "0"),
        (7, 7),
        ("1/8", "0.125"),
    ],
)
def test_a_start_is_written_in_one_way(given: object, written: str | int) -> None:
    assert phase_start(given) == written
    assert phase_start(written) == written


@pytest.mark.parametrize("start", [0.8, 1.0, True, -1, "1", "1.5", "1e-1", " 0.5", "1/0", "0/0", "-0.5", None, "0.8\n", "9" * 5_000])
def test_a_start_that_is_no_exact_share_or_step_is_refused(start: object) -> None:
    with pytest.raises(ConfigError, match="start"):
        PhaseConfig.from_json({"start": start, "weights": {"a": 1.0}})


def test_phases_are_simplices_in_the_order_of_their_starts() -> None:
    def config(*phases: tuple[str | int, Weights], first: float = 1.0) -> MixtureConfig:
        later = [{"start": start, "weights": dict(weights)} for start, weights in phases]
        return MixtureConfig.from_json({"weights": {"a": first}, "phases": later, "sequence_length": 8})

    assert config(("1/3", {"b": 1.0}), ("0.5", {"a": 0.25, "b": 0.75 + 5e-10})).names == ("a", "b")
    assert config(first=3.0).phases == ()
    for field, value in (("max_epochs", 0), ("target_tokens", 0), ("stop", "never")):
        with pytest.raises(ConfigError, match=f"'{field}' has value {value!r}"):
            MixtureConfig.from_json({"weights": {"a": 1.0}, "sequence_length": 8, field: value})
    for match, phases, first in (
        ("from 0.5 on sum to 0.9", [("0.5", {"a": 0.9})], 1.0),
        ("from 0 on sum to 2.0", [("0.5", {"a": 1.0})], 2.0),
        ("begin at 0.5, 1/3", [("0.5", {"a": 1.0}), ("1/3", {"a": 1.0})], 1.0),
        ("begin at 0;", [("0", {"a": 1.0})], 1.0),
        ("'a' is -1.0", [("0.5", {"a": -1.0, "b": 2.0})], 1.0),
    ):
        with pytest.raises(ConfigError, match=match):
            config(*phases, first=first)


# Sequence lengths ---------------------------------------------------------------------------------------------------

lengths = st.lists(st.sampled_from([2, 4, 8, 16, 64, 512]), min_size=1, max_size=4)


@settings(max_examples=20, deadline=None)
@given(
    lengths=lengths,
    tokens=st.lists(st.integers(512, 6_000), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 20), min_size=4, max_size=4),
    window=st.integers(1, 3),
)
def test_longer_sequences_go_on_with_the_next_window_and_repeat_no_token(
    lengths: list[int], tokens: list[int], sizes: list[int], window: int
) -> None:
    names = ["a", "b", "c"][: len(tokens)]
    run = mixture(dict(zip(names, tokens, strict=True)), [("0", dict.fromkeys(names, 1.0))], window_blocks=window, max_epochs=1e9)
    stages = [PlainStage(size, length, 7 * index) for index, (size, length) in enumerate(zip(sizes, lengths, strict=False))]
    order = DataOrder(run, stages, 7 * len(stages))
    seen: Counter[tuple[int, int, int]] = Counter()
    for step, rows in enumerate(walked(run, stages, [0], 7 * len(stages))):
        places = np.stack(order.places(step), axis=1).tolist()
        assert places == [list(row) for row in rows], step
        length = order.stage(step).sequence_length
        for component, epoch, sequence in places:
            assert (sequence + 1) * length <= tokens[component]
            seen.update((component, epoch, token) for token in range(sequence * length, (sequence + 1) * length))
    assert max(seen.values()) == 1


def test_another_batch_size_keeps_the_order_and_another_length_must_fill_the_blocks() -> None:
    constant, changing = (DataOrder(mixture(TOKENS, PHASES[:1]), stages) for stages in ([PlainStage(4, LENGTH)], STAGES))
    rows = np.concatenate([np.stack(changing.places(step), axis=1) for step in range(1_990, 2_010)])
    first = 1_990 * 4
    assert np.array_equal(rows, np.concatenate([np.stack(constant.places(first // 4 + step), axis=1) for step in range(len(rows) // 4)]))
    with pytest.raises(ConfigError, match=r"sequence_length 11 doesn't divide the 2048(.|\n)*length that does is 8;"):
        DataOrder(mixture(TOKENS, PHASES[:1]), [PlainStage(4, LENGTH), PlainStage(4, 11, 10)])
    with pytest.raises(ConfigError, match="'books' has 100 tokens, fewer than one sequence of 128, and a weight from step 10 on"):
        DataOrder(mixture({"books": 100}, [("0", {"books": 1.0})]), [PlainStage(4, LENGTH), PlainStage(4, 128, 10)])
    for stages in ([], [PlainStage(4, LENGTH, 1)], [PlainStage(4, LENGTH)] * 2, [PlainStage(0, LENGTH)], [PlainStage(4, 0)]):
        with pytest.raises(ConfigError, match=r"stages of batches|field '"):
            DataOrder(RUN, stages, STEPS)


# Epochs and the end -------------------------------------------------------------------------------------------------


def test_a_run_that_reads_a_component_too_often_is_refused_before_it_begins() -> None:
    tokens = {"code": 900 * LENGTH, "web": 900 * LENGTH}
    run, stages = mixture(tokens, [("0", {"web": 0.25, "code": 0.75})]), [PlainStage(8, LENGTH)]
    with pytest.raises(ConfigError, match=r"'code' would be read 8.33 times in 1250 steps, the mixture's max_epochs is 8(.|\n)*most 1200 "):
        check_order(run, 1_250, stages)
    assert check_order(run, 1_200, stages) == {"code": 8.0, "web": pytest.approx(8 / 3, abs=0.01)}
    with pytest.raises(ConfigError, match="most 1200 "):
        check_order(run, 1_201, stages)
    assert check_order(mixture(tokens, [("0", {"web": 0.25, "code": 0.75})], max_epochs=8.5), 1_250, stages)["code"] > 8


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.tuples(st.integers(10, 900), st.integers(10, 900)),
    weight=st.floats(0.05, 0.95),
    batch=st.integers(1, 40),
    longer=st.booleans(),
    rule=st.sampled_from(["first_exhausted", "all_exhausted"]),
)
def test_the_end_is_the_last_step_before_a_repeat_or_the_first_with_everything(
    sizes: tuple[int, int], weight: float, batch: int, longer: bool, rule: str
) -> None:
    tokens = {"a": sizes[0] * 4 * LENGTH, "b": sizes[1] * 4 * LENGTH}
    run = mixture(tokens, [("0", {"a": weight, "b": 1 - weight})], stop=rule, block_sequences=16)
    stages = [PlainStage(batch, LENGTH), PlainStage(batch, 2 * LENGTH, 20)] if longer else [PlainStage(batch, LENGTH)]
    end = DataOrder(run, stages).end_step
    assert end is not None
    free = DataOrder(run.changed(stop="restart"), stages)
    at, after = free.epochs(end), free.epochs(end + 1)
    if rule == "first_exhausted":
        assert max(at.values()) <= 1 < max(after.values())
    else:
        assert min(free.epochs(end - 1).values()) < 1 <= min(at.values())
    order = DataOrder(run.changed(max_epochs=1e9), stages, end)
    if end:
        order.places(end - 1)
    with pytest.raises(ConfigError, match=f"step is {end}, the data ends after {end} steps by the rule '{rule}'"):
        order.places(end)
    with pytest.raises(ConfigError, match=f"Set num_steps to at most {end},"):
        DataOrder(run, stages, end + 1)


def test_data_that_never_ends_has_no_end() -> None:
    """A component without weight in the last phase, and with too little before, is never read whole."""
    run = mixture(TOKENS, [("0", {"web": 0.5, "code": 0.5}), ("0.5", {"web": 1.0})], stop="all_exhausted")
    assert DataOrder(run, [PlainStage(4, LENGTH)], 1_000).end_step is None
    assert DataOrder(RUN, STAGES, STEPS).end_step is None


def test_simulated_epochs_are_those_of_the_full_run() -> None:
    """A tenth of the run reads a tenth of each component as often: the first tenth of the whole one's first epoch."""
    tokens = {"code": 8_000 * LENGTH, "web": 30_000 * LENGTH}
    weights = {"code": 0.5, "web": 0.5}
    full, stages = mixture(tokens, [("0", weights)]), [PlainStage(16, LENGTH)]
    short = full.changed(target_tokens=2_000 * 16 * LENGTH)
    order = DataOrder(short, stages, 200)
    assert order.epochs(200) == pytest.approx(check_order(full, 2_000, stages), rel=0.01)
    places = [np.stack(order.places(step), axis=1) for step in range(200)]
    rows = np.concatenate(places)
    assert max(Counter(map(tuple, rows.tolist())).values()) == 1
    for index, (name, n) in enumerate((("code", 800), ("web", 3_000))):
        whole = WalkedComponent(full, name, LENGTH)
        first = {whole.next()[1] for _ in range(n)}
        used = rows[rows[:, 0] == index]
        assert set(used[:, 2].tolist()) <= first
        if name == "code":
            assert set(used[used[:, 1] == 0][:, 2].tolist()) == first
    for match, num_steps, stage in (
        ("num_steps to at most 2000", 2_001, stages),
        ("num_steps is not given", None, stages),
        ("changes its sequence length", 200, [*stages, PlainStage(16, 2 * LENGTH, 100)]),
        ("before it is cut", 1, [PlainStage(1, LENGTH)]),
    ):
        with pytest.raises(ConfigError, match=match):
            DataOrder(short, stage, num_steps)
