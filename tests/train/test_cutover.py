"""A fork goes on as its parent would, but for what was changed; and what tells whether the change may stay."""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_core.artifact import ArtifactId
from marin_core.artifact.objects import LocalObjects
from marin_core.data.batch import Batch
from marin_core.errors import ConfigError, DataError, PreemptedError
from marin_core.report import SilentReporter
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.checkpoint.store import CheckpointStore
from marin_core.train.config import Fork, StartFrom
from marin_core.train.cutover.compare import Comparison, Thresholds, compare
from marin_core.train.cutover.point import FORK_FILE, ForkPoint, find_point, hand_off, hold, inherit, release
from marin_core.train.cutover.record import Closed, CutoverRecord, Forked, Launch, Plan
from marin_core.train.loop import TrainResult, train
from marin_core.train.metrics import read_metrics
from marin_core.train.optimizers.config import AdamW
from marin_core.train.order import Skipped, SkippedBatches
from marin_core.train.schedules import Reslope
from tests.train.test_loop import Recorder, exact_rows
from tests.train.tiny_run import STEPS, batches, tiny_config

Finished = tuple[Path, TrainResult]
AT = 8


def run_fork(parent: Path, run_dir: Path, reporter: SilentReporter | None = None, **changes: Any) -> TrainResult:
    config = tiny_config(**({"fork": Fork(step=AT)} | changes))
    result = train(config, batches, run_dir, reporter or SilentReporter(), fingerprint="fork", run_name="fork", earlier_run=parent)
    assert result is not None
    return result


# A fork as a run -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fork_without_a_change_is_its_parent_bit_for_bit_also_when_it_is_interrupted(finished: Finished, tmp_path: Path) -> None:
    parent, result = finished
    policy = CheckpointPolicy(permanent_every_steps=4)
    with pytest.raises(PreemptedError, match="after step 10 of 12"):
        run_fork(parent, tmp_path / "fork", Recorder(stop_after=9), checkpoints=policy)
    gone = tmp_path / "the parent isn't needed any more"
    again = run_fork(gone, tmp_path / "fork", checkpoints=policy)
    assert exact_rows(tmp_path / "fork") == exact_rows(parent)
    assert again.content_digest == result.content_digest
    assert again.checkpoint_digests == {12: result.checkpoint_digests[12]}
    assert [path.name for path in (tmp_path / "fork" / "checkpoints").iterdir()] == ["12"]
    point = ForkPoint.from_json(json.loads((tmp_path / "fork" / FORK_FILE).read_text()))
    assert (point.checkpoint, point.history_row, point.content_digest) == (AT, AT - 1, result.checkpoint_digests[AT])
    assert (point.run_name, point.fingerprint) == ("tiny", "f1")


@pytest.mark.slow
def test_a_fork_with_another_rate_leaves_its_parent_at_the_fork_on_the_same_batches(finished: Finished, tmp_path: Path) -> None:
    parent, result = finished
    optimizer = tiny_config().optimizer
    assert isinstance(optimizer, AdamW)
    slower = optimizer.changed(schedule=Reslope.at(AT, optimizer.schedule, STEPS, final_ratio=0.5))
    changed = run_fork(parent, tmp_path / "fork", optimizer=slower)
    ours, theirs = exact_rows(parent), exact_rows(tmp_path / "fork")
    assert theirs[:AT] == ours[:AT]
    assert [row["batch"] for row in theirs] == [row["batch"] for row in ours]
    assert theirs[AT]["loss"] == ours[AT]["loss"]  # before the first changed update
    assert all(theirs[step]["loss"] != ours[step]["loss"] for step in range(AT + 2, STEPS))
    assert changed.content_digest != result.content_digest
    found = compare(parent / "metrics.jsonl", tmp_path / "fork" / "metrics.jsonl", first_step=AT, steps=4, thresholds=Thresholds())
    assert found.shares_past
    assert found.loss is not None
    assert (found.loss.pairs, found.loss.first) == (4, 0.0)
    assert found.loss.mean == np.mean([theirs[step]["loss"] - ours[step]["loss"] for step in range(AT, STEPS)])  # type: ignore[operator]


@pytest.mark.slow
def test_batches_that_the_parent_left_out_before_the_fork_are_left_out_and_later_ones_are_not(finished: Finished, tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    shutil.copytree(finished[0], parent)
    skipped = SkippedBatches(parent)
    for at_step in (2, AT, AT + 1):
        skipped.add(Skipped(at_step=at_step, batches=3, reason="a spike"), write=True)
    rows = [row | {"batch": skipped.batch_of(row["step"])} for row in read_metrics(parent / "metrics.jsonl")]
    (parent / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked: list[int] = []

    def watched(index: int, host: int, hosts: int) -> Batch:
        asked.append(index)
        return batches(index, host, hosts)

    config = tiny_config(fork=Fork(step=AT))
    train(config, watched, tmp_path / "fork", SilentReporter(), fingerprint="fork", run_name="fork", earlier_run=parent)
    assert asked == [AT + 6, AT + 7, AT + 8, AT + 9]
    assert find_point(parent, AT).skipped_batches == 6


def test_a_fork_of_another_shape_or_without_a_run_is_refused(finished: Finished, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint of step 5"):
        inherit(tmp_path, finished[0], 5)
    with pytest.raises(ConfigError, match="give one of them"):
        tiny_config(fork=Fork(step=4), start_from=StartFrom(step=4))
    with pytest.raises(ConfigError, match=r"fork\.step = 12 must be below num_steps = 12"):
        tiny_config(fork=Fork(step=STEPS))
    with pytest.raises(ConfigError, match="none was given"):
        train(tiny_config(fork=Fork(step=4)), batches, tmp_path, SilentReporter(), fingerprint="f", run_name="r")
    assert tiny_config(fork=Fork(step=4)).checkpoint_steps == (8, 12)


# Where it is forked ----------------------------------------------------------------------------------------------------


def copied(finished: Finished, tmp_path: Path) -> Path:
    """The parent's own directory without arrays, to be damaged."""
    parent = tmp_path / "parent"
    shutil.copytree(finished[0], parent, ignore=shutil.ignore_patterns("d", "ocdbt*", "plots"))
    return parent


def change_line(path: Path, number: int, **changes: object) -> None:
    lines = path.read_text().splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | changes)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda run: (run / "metrics.jsonl").write_text("".join((run / "metrics.jsonl").read_text().splitlines(True)[: AT - 1])), "7 rows"),
        (lambda run: change_line(run / "metrics.jsonl", 3, step=4), "row 3 of metrics.jsonl is of step 4"),
        (lambda run: change_line(run / "metrics.jsonl", AT - 1, batch=99), "row 7 trained on batch 99"),
        (lambda run: SkippedBatches(run).add(Skipped(at_step=2, batches=1, reason="?"), write=True), "that is 8"),
        (lambda run: change_line(run / "checkpoints" / str(AT) / "metadata.json", 0, step=AT - 1), "holds 7 updates"),
        (lambda run: change_line(run / "checkpoints" / str(AT) / "metadata.json", 0, fingerprint="f2"), "fingerprint f2"),
    ],
)
def test_a_checkpoint_whose_history_disagrees_is_no_fork_point(damage: Any, says: str, finished: Finished, tmp_path: Path) -> None:
    parent = copied(finished, tmp_path)
    assert find_point(parent, AT).history_row == AT - 1
    damage(parent)
    with pytest.raises(DataError, match=says):
        find_point(parent, AT)
    with pytest.raises(DataError, match="disagree"):
        inherit(tmp_path, parent, AT)
    assert not (tmp_path / FORK_FILE).exists()


def test_a_held_fork_point_is_held_for_the_store_of_checkpoints_too(finished: Finished, tmp_path: Path) -> None:
    parent = copied(finished, tmp_path)
    hold(parent, AT, "cut-over to fork@v1")
    assert CheckpointStore(parent).held() == [AT]
    assert release(parent, AT)
    assert CheckpointStore(parent).held() == []
    assert not release(parent, AT)


@pytest.mark.slow
def test_a_hand_off_is_all_that_a_fork_needs_and_outlives_the_run(finished: Finished, tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    shutil.copytree(finished[0], parent)
    hold(parent, AT, "cut-over")
    hand_off(parent, AT, tmp_path / "hand_off")
    expected = find_point(parent, AT)
    shutil.rmtree(parent)
    hand_off(parent, AT, tmp_path / "hand_off")  # it is there: nothing is read
    assert find_point(tmp_path / "hand_off", AT) == expected
    assert len(read_metrics(tmp_path / "hand_off" / "metrics.jsonl")) == AT
    assert CheckpointStore(tmp_path / "hand_off").held() == []
    assert run_fork(tmp_path / "hand_off", tmp_path / "fork").content_digest == finished[1].content_digest


# Go or no-go -----------------------------------------------------------------------------------------------------------


def synthetic(
    path: Path,
    losses: np.ndarray[Any, np.dtype[np.float64]],
    first: int = 0,
    leave_out: tuple[int, ...] = (),
    values: Mapping[str, float] | None = None,
) -> Path:
    """A metrics file with these losses."""
    base = {
        "sender_drop_fraction": 0.01,
        "receiver_drop_fraction": 0.02,
        "throughput/tokens_per_second": 1000.0,
        "throughput/duration": 1.0,
        "throughput/iteration_time": 1.25,
        "memory/host_rss_bytes": 1e9,
    }
    rows = [
        {"step": step, "batch": step, "loss": float(loss), **base, **(values or {})}
        for step, loss in enumerate(losses, first)
        if step not in leave_out
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pair(tmp_path: Path, delta: float, noise: float, values: Mapping[str, float] | None = None) -> Comparison:
    """A control, and a fork that loses `delta` nats from step 50 on, give or take the noise."""
    rng = np.random.default_rng(0)
    losses = 3 + rng.normal(size=250) * 0.2  # what batches have in common is far larger than what is looked for
    changed = losses + np.where(np.arange(250) >= 50, delta + noise * rng.normal(size=250), 0)
    control, child = synthetic(tmp_path / "control", losses), synthetic(tmp_path / "child", changed, values=values)
    return compare(control, child, first_step=50, steps=200, thresholds=Thresholds(loss_nats=0.005))


def failed(comparison: Comparison) -> list[str]:
    return [each.name for each in comparison.criteria if each.passed is False]


def test_a_known_difference_is_found_under_noise_that_is_forty_times_as_large(tmp_path: Path) -> None:
    found = pair(tmp_path, delta=0.0, noise=0.005)
    assert found.go
    assert found.loss is not None
    assert found.loss.sd == pytest.approx(0.005, rel=0.15)
    assert found.loss.low < 0 < found.loss.high < 0.002
    worse = pair(tmp_path, delta=0.01, noise=0.005)
    assert not worse.go
    assert failed(worse) == ["mean Δloss, upper end of its interval"]
    assert worse.loss is not None
    assert worse.loss.low < 0.01 < worse.loss.high
    better = pair(tmp_path, delta=-0.01, noise=0.005)
    assert better.go


def test_what_is_too_noisy_to_tell_is_no_go(tmp_path: Path) -> None:
    assert failed(pair(tmp_path, delta=0.0, noise=0.2)) == ["mean Δloss, upper end of its interval"]


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_the_interval_holds_the_truth_as_often_as_it_says(correlation: float) -> None:
    from marin_core.train.cutover.compare import _paired_loss

    rng = np.random.default_rng(3)
    noise = rng.normal(size=(2000, 260))
    for step in range(1, 260):
        noise[:, step] += correlation * noise[:, step - 1]
    found = [_paired_loss(each[60:] + 0.1) for each in noise]
    covered = np.mean([each.low <= 0.1 <= each.high for each in found])
    assert 0.92 < covered < 0.97
    if correlation:  # the naive interval, which takes steps for independent, is wrong nearly every third time
        naive = np.mean([abs(each.mean - 0.1) < 1.96 * each.sd / math.sqrt(200) for each in found])
        assert naive < 0.75


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"sender_drop_fraction": 0.016}, ["rise of sender drops"]),
        ({"receiver_drop_fraction": 0.026}, ["rise of receiver drops"]),
        ({"throughput/iteration_time": 1.30}, ["tokens a second, ratio"]),
        ({"throughput/mfu": 0.25}, ["MFU, ratio"]),  # the control doesn't say: that can't be judged, and isn't passed over
        ({"memory/host_rss_bytes": 1.06e9}, ["memory peak, ratio"]),
        ({"sphere_norm_drift": 2e-3}, ["sphere norm drift"]),
        ({"sphere_norm_drift": 1e-4, "receiver_drop_fraction": 0.0}, []),
    ],
)
def test_each_cost_has_its_threshold(values: dict[str, float], names: list[str], tmp_path: Path) -> None:
    found = pair(tmp_path, 0.0, 0.001, values)
    assert failed(found) == names
    assert found.go == (not names)
    assert found.control.tokens_per_second == 800.0


def test_missing_steps_and_a_loss_that_is_not_finite_are_no_go(tmp_path: Path) -> None:
    losses = np.full(100, 3.0)
    control = synthetic(tmp_path / "control", losses)
    broken = losses.copy()
    broken[60] = np.nan
    child = synthetic(tmp_path / "child", broken, leave_out=(55, 56))
    found = compare(control, child, first_step=50, steps=100, thresholds=Thresholds())
    assert found.missing[:3] == (55, 56, 100)
    assert found.non_finite == (60,)
    assert failed(found) == ["missing steps", "steps with a loss that isn't finite"]
    assert found.loss is not None
    assert (found.loss.pairs, found.loss.mean, found.loss.high) == (47, 0.0, 0.0)


def test_runs_that_do_not_start_together_are_refused(tmp_path: Path) -> None:
    losses = np.full(100, 3.0)
    control = synthetic(tmp_path / "control", losses)
    late = synthetic(tmp_path / "late", losses[60:], first=60)
    with pytest.raises(ConfigError, match="no row of step 50, only those of 60 to 89"):
        compare(control, late, first_step=50, steps=40, thresholds=Thresholds())
    other = synthetic(tmp_path / "other", losses + 0.5)
    with pytest.raises(DataError, match=r"At step 49, before the fork, the loss of .* is 3\.0 and that of .* 3\.5"):
        compare(control, other, first_step=50, steps=40, thresholds=Thresholds())
    shifted = synthetic(tmp_path / "shifted", losses, values={"batch": 7})
    with pytest.raises(DataError, match=r"At step 50 .* trained on batch 50 and .* on batch 7"):
        compare(control, shifted, first_step=50, steps=40, thresholds=Thresholds())
    with pytest.raises(ConfigError, match="doesn't exist"):
        compare(control, tmp_path / "none", first_step=50, steps=40, thresholds=Thresholds())
    own_past = synthetic(tmp_path / "fork", losses[50:], first=50)
    assert compare(control, own_past, first_step=50, steps=50, thresholds=Thresholds()).shares_past is None


# The record ------------------------------------------------------------------------------------------------------------

CHILD = ArtifactId("checkpoints/x", "v2")
STAMP: dict[str, Any] = {"at": "2026-11-30T00:00:00+00:00", "commit": "c" * 40}


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "parent": "checkpoints/x@v1",
        "parent_fingerprint": "p",
        "child": str(CHILD),
        "child_fingerprint": "c",
        "source": "checkpoints/x@v1",
        "step": AT,
        "control_steps": 200,
        "thresholds": Thresholds(),
        "same_batches": True,
        "changes": (),
        "parent_commit": "d" * 40,
        "rollback": "marin materialize checkpoints/x@v1",
    }
    return Plan(**STAMP, **(values | changes))


def test_the_record_only_grows_and_its_conditions_stand_once_the_fork_is_launched(finished: Finished, tmp_path: Path) -> None:
    record = CutoverRecord(LocalObjects(tmp_path), CHILD)
    with pytest.raises(ConfigError, match="has no plan"):
        record.plan()
    assert record.append(plan()) == 1
    forked = Forked(**STAMP, point=find_point(finished[0], AT), folder="f")
    record.append(forked)
    assert record.forked() == forked
    stricter = plan(thresholds=Thresholds(loss_nats=0.001))
    before = {path: path.read_bytes() for path in (tmp_path / record.folder).iterdir()}
    assert record.append(stricter) == 3
    assert {path: path.read_bytes() for path in before} == before
    assert record.plan() == stricter
    with pytest.raises(ConfigError, match="no checkpoint is verified"):
        record.forked()  # of the plan before
    record.append(forked)
    record.append(Launch(**STAMP, child=str(CHILD), run_name="x", target="here", checkpoint=AT, content_digest="d"))
    for late in (plan(), forked):
        with pytest.raises(ConfigError, match="was launched already"):
            record.append(late)
    record.append(Closed(**STAMP, released=True))
    assert [entry.kind for entry in CutoverRecord(LocalObjects(tmp_path), CHILD).entries()] == [
        "plan",
        "fork",
        "plan",
        "fork",
        "launch",
        "close",
    ]
    (tmp_path / record.folder / "00002.json").write_text("{")
    with pytest.raises(DataError, match=r"00002\.json in the store is damaged"):
        record.entries()
