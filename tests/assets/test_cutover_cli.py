"""`marin cutover`: each step refuses what would make the cut-over worthless, and leaves on record all that it takes to repeat it."""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marin_assets.cli import cutover
from marin_assets.cli.main import parser
from marin_assets.launch.local import process_start
from marin_core import experiment as lab
from marin_core.artifact import ArtifactId, ArtifactStep, Claim, End, Store
from marin_core.artifact.record import Code
from marin_core.errors import ConfigError
from marin_core.experiment.jobs import TrainJob
from marin_core.experiment.training import checkpoint_keys
from marin_core.train.checkpoint.metadata import CheckpointMetadata, content_digest
from marin_core.train.cutover.compare import Thresholds
from marin_core.train.cutover.point import find_point
from marin_core.train.cutover.record import Compared, CutoverRecord, Launch, Live, Plan, RolledBack
from tests.assets.conftest import Said
from tests.assets.fabricated import Fabricated
from tests.experiment.test_handles import MIX, training
from tests.integration.deployment import wait_for

Marin = Callable[..., Said]
PROJECT = Path(__file__).resolve().parents[2]
AT, STEPS = 4, 10
HEAD, PARENTS = "c" * 40, "d" * 40
CHILD = ArtifactId("checkpoints/x", "v2")
PARENT = training()


def child(source: ArtifactStep = PARENT, **changes: object) -> ArtifactStep:
    """A fork with another learning rate, and another mesh's worth of prefetching to see that it is told apart."""
    values: dict[str, Any] = {
        "model": lab.moe_tiny(vocab_size=300),
        "optimizer": lab.AdamW(learning_rate=1e-3, schedule=lab.Wsd(warmup_steps=1)),
        "num_steps": STEPS,
        "global_batch_size": 2,
        "checkpoints": lab.CheckpointPolicy(permanent_every_steps=4, temporary_every_steps=2),
        "fork": lab.fork(source, step=AT),
    }
    return lab.train_lm("checkpoints/x", "v2", MIX, **(values | changes))


def rows(delta: float = 0.0) -> str:
    """Metrics of a run of ten steps, whose losses are `delta` higher from the fork on."""
    return "".join(
        json.dumps({"step": step, "batch": step, "loss": 5.0 - 0.1 * step + (delta if step >= AT else 0.0)}) + "\n" for step in range(STEPS)
    )


def run_files(metrics: str = "") -> dict[str, str]:
    """What a training leaves, without its arrays."""
    digest = content_digest({})
    metadata = CheckpointMetadata(
        step=AT,
        is_temporary=False,
        saved_at=0.0,
        fingerprint="f1",
        source_commit=None,
        mesh={},
        processes=1,
        bytes=0,
        leaves={},
        files={},
        content_digest=digest,
    )
    return {
        "run.json": json.dumps({"run_name": "checkpoints-x-v1", "fingerprint": "f1", "tracker_run_id": "t", "config": {}}),
        "metrics.jsonl": metrics or rows(),
        f"checkpoints/{AT}/metadata.json": metadata.model_dump_json(),
    }


@pytest.fixture
def finished(fabricated: Fabricated, monkeypatch: pytest.MonkeyPatch) -> Fabricated:
    """A lab with a finished parent, a declared fork, and a clean checkout."""
    monkeypatch.setattr(cutover, "checkout", lambda: (HEAD, []))
    fabricated.declare(PARENT, child())
    fabricated.build(PARENT, content=run_files(), code=Code(git_commit=PARENTS))
    return fabricated


def entries(lab: Fabricated) -> CutoverRecord:
    return CutoverRecord(lab.store.objects, CHILD)


def newest[E: (Plan, Launch, Live, Compared, RolledBack)](record: CutoverRecord, kind: type[E]) -> E:
    found = record.newest(kind)
    assert found is not None
    return found


def claim(number: int, host: str = "elsewhere") -> Claim:
    return Claim(number=number, job=f"m-x-a{number}", fingerprint="f", submitted_at="now", host=host)


class Builder:
    """Stands for the process that builds the fork: it claims an attempt, as any builder does, and lives."""

    def __init__(self, lab: Fabricated, ended: int | None = None) -> None:
        self._lab = lab
        self._ended = ended
        self.started: list[ArtifactId] = []

    def __call__(self, artifact: ArtifactId, log: Path) -> "Builder":
        self.started.append(artifact)
        if self._ended is None:
            assert self._lab.store.claim(artifact, claim(1))
        return self

    def poll(self) -> int | None:
        return self._ended


@pytest.fixture
def builder(finished: Fabricated, monkeypatch: pytest.MonkeyPatch) -> Builder:
    found = Builder(finished)
    monkeypatch.setattr(cutover, "start", found)
    return found


def finish_child(lab: Fabricated, delta: float) -> None:
    lab.store.close(CHILD, 1, End(state="lost", ended_at="now"))
    lab.build(child(), content=run_files(rows(delta)))


def test_a_cut_over_from_plan_to_rollback(finished: Fabricated, builder: Builder, marin: Marin) -> None:
    planned = marin("cutover", "plan", "checkpoints/x@v1", "checkpoints/x@v2", "--control-steps", "6", "--threshold", "loss_nats=0.02")
    assert planned.code == 0
    assert all(word in planned.out for word in ("train.optimizer.learning_rate", "0.001", "train.fork.step", "operational", "loss_nats"))
    assert f"git checkout {PARENTS} && marin materialize checkpoints/x@v1" in planned.out

    forked = marin("cutover", "fork", "checkpoints/x@v2", "--json")
    assert (forked.code, forked.json["point"]["checkpoint"], forked.json["point"]["history_row"]) == (0, AT, AT - 1)
    held = Path(forked.json["folder"]) / "checkpoints" / str(AT) / "held"
    assert held.read_text() == "cut-over to checkpoints/x@v2\n"
    parent = finished.store.record(PARENT.id)
    assert parent is not None
    finished.store.require_intact(parent, every_byte=True)  # a pin is no damage

    launched = marin("cutover", "launch", "checkpoints/x@v2")
    assert launched.code == 0, launched.err
    assert "job m-x-a1 on elsewhere, attempt 1" in launched.out
    assert builder.started == [CHILD]

    finish_child(finished, delta=0.001)
    go = marin("cutover", "compare", "checkpoints/x@v1", "checkpoints/x@v2")
    assert (go.code, go.out.splitlines()[-1]) == (0, "go")
    assert "+0.001000 nats" in go.out

    back = marin("cutover", "rollback", "checkpoints/x@v2", "--reason", "evaluations fell")
    assert (back.code, back.out) == (0, f"git checkout {PARENTS} && marin materialize checkpoints/x@v1\n")
    assert held.exists()  # one may still want to return to it
    assert "is held no more" in marin("cutover", "rollback", "checkpoints/x@v2", "--close").out
    assert not held.exists()

    record = entries(finished)
    assert [each.kind for each in record.entries()] == ["plan", "fork", "launch", "live", "compare", "rollback", "close"]
    assert all(each.commit == HEAD for each in record.entries())
    plan, launch, live, rollback = newest(record, Plan), newest(record, Launch), newest(record, Live), newest(record, RolledBack)
    assert (plan.step, plan.control_steps, plan.thresholds) == (AT, 6, Thresholds(loss_nats=0.02))
    assert (plan.parent_commit, plan.same_batches) == (PARENTS, True)
    changed = {each.field: (each.kind, each.parent, each.child) for each in plan.changes}
    assert changed["train.optimizer.learning_rate"] == ("config", "0.003", "0.001")
    assert changed["train.checkpoints.temporary_every_steps"] == ("operational", "None", "2")
    assert (launch.dirty, launch.checkpoint, launch.run_name) == (False, AT, "checkpoints-x-v2")
    assert (live.job, live.attempt) == ("m-x-a1", 1)
    assert newest(record, Compared).comparison.go
    assert (rollback.reason, rollback.parent_commit) == ("evaluations fell", PARENTS)


def test_a_fork_that_is_worse_is_no_go_and_exits_1(finished: Fabricated, builder: Builder, marin: Marin) -> None:
    marin("cutover", "plan", "checkpoints/x@v1", "checkpoints/x@v2", "--control-steps", "6")
    marin("cutover", "fork", "checkpoints/x@v2")
    marin("cutover", "launch", "checkpoints/x@v2")
    finish_child(finished, delta=0.5)
    said = marin("cutover", "compare", "checkpoints/x@v1", "checkpoints/x@v2", "--json")
    assert (said.code, said.json["planned"], said.json["go"]) == (1, True, False)
    assert said.json["loss"]["mean"] == pytest.approx(0.5)
    late = marin("cutover", "plan", "checkpoints/x@v1", "checkpoints/x@v2", "--threshold", "loss_nats=1")
    assert late.code == 64
    assert "was started already" in late.err
    assert "says which steps to compare" in marin("cutover", "compare", "checkpoints/x@v1", "checkpoints/x@v2", "--from", "4").err


def prepared(marin: Marin) -> None:
    assert marin("cutover", "plan", "checkpoints/x@v1", "checkpoints/x@v2").code == 0
    assert marin("cutover", "fork", "checkpoints/x@v2").code == 0


def test_nothing_is_launched_without_a_plan_and_a_held_checkpoint(finished: Fabricated, builder: Builder, marin: Marin) -> None:
    assert "has no plan of a cut-over" in marin("cutover", "launch", "checkpoints/x@v2").err
    assert "has no plan of a cut-over" in marin("cutover", "fork", "checkpoints/x@v2").err
    marin("cutover", "plan", "checkpoints/x@v1", "checkpoints/x@v2")
    said = marin("cutover", "launch", "checkpoints/x@v2")
    assert (said.code, builder.started) == (64, [])
    assert "no checkpoint is verified and held" in said.err


def test_nothing_is_launched_from_a_changed_tree(
    finished: Fabricated, builder: Builder, marin: Marin, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(marin)
    for found, says in (((HEAD, [" M marin_core/train/step.py"]), "1 files have changes"), ((None, []), "no git checkout")):
        monkeypatch.setattr(cutover, "checkout", lambda found=found: found)
        said = marin("cutover", "launch", "checkpoints/x@v2")
        assert (said.code, builder.started) == (64, [])
        assert says in said.err
    assert entries(finished).newest(Launch) is None


def test_nothing_is_launched_that_was_changed_since_the_plan(finished: Fabricated, builder: Builder, marin: Marin) -> None:
    prepared(marin)
    finished.declare(PARENT, child(seed=1))
    said = marin("cutover", "launch", "checkpoints/x@v2")
    assert (said.code, builder.started) == (64, [])
    assert "declared differently from how it was planned" in said.err


@pytest.mark.parametrize("run", [ArtifactId("checkpoints/x", "v1"), CHILD])
def test_nothing_is_launched_while_another_owner_builds_parent_or_child(
    run: ArtifactId, finished: Fabricated, builder: Builder, marin: Marin
) -> None:
    prepared(marin)
    assert finished.store.claim(run, claim(2, host="another machine"))
    said = marin("cutover", "launch", "checkpoints/x@v2")
    assert (said.code, builder.started) == (64, [])
    assert f"{run} is being built by m-x-a2 on another machine" in said.err


def test_a_launch_after_which_two_jobs_live_is_an_error(
    finished: Fabricated, builder: Builder, marin: Marin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that outlived its attempt: this machine still runs it, though nobody waits for it any more."""
    prepared(marin)
    folder = finished.folder / ".jobs" / "m-x-orphan-a1"

    def start(artifact: ArtifactId, log: Path) -> Builder:
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text(json.dumps({"name": CHILD.name, "version": CHILD.version, "partition": None}))
        (folder / "process.json").write_text(json.dumps({"pid": os.getpid(), "started": process_start(os.getpid())}))
        return builder(artifact, log)

    monkeypatch.setattr(cutover, "start", start)
    said = marin("cutover", "launch", "checkpoints/x@v2")
    assert said.code == 64
    assert "has 2 live jobs: m-x-a1 on elsewhere; m-x-orphan-a1 on" in said.err
    assert entries(finished).newest(Live) is None


def test_a_builder_that_ends_without_a_job_is_said(finished: Fabricated, marin: Marin, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(marin)
    monkeypatch.setattr(cutover, "start", Builder(finished, ended=64))
    said = marin("cutover", "launch", "checkpoints/x@v2")
    assert said.code == 75
    assert "no job of checkpoints/x@v2 came to life" in said.err


def test_a_checkpoint_whose_history_disagrees_is_not_forked(finished: Fabricated, marin: Marin) -> None:
    marin("cutover", "plan", "checkpoints/x@v1", "checkpoints/x@v2")
    metrics = finished.payload(PARENT).parent / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[: AT - 1]))
    said = marin("cutover", "fork", "checkpoints/x@v2")
    assert said.code == 65
    assert "metrics.jsonl has 3 rows before it, not 4" in said.err
    assert not (metrics.parent / "checkpoints" / str(AT) / "held").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "checkpoints/x@v2", "checkpoints/x@v2"], "is a fork of checkpoints/x@v1, not of checkpoints/x@v2"),
        (["plan", "checkpoints/x@v1", "checkpoints/x@v1"], "is declared as no fork"),
        (["plan", "checkpoints/x@v1", "checkpoints/x@v3"], "no experiment declares checkpoints/x@v3"),
        (["plan", "checkpoints/x@v1", "checkpoints/x@v2", "--threshold", "loss"], "is no NAME=VALUE"),
        (["plan", "checkpoints/x@v1", "checkpoints/x@v2", "--threshold", "loss=1"], "unknown field 'loss'"),
        (["plan", "checkpoints/x@v1", "checkpoints/x@v2", "--threshold", "loss_nats=-1"], "loss_nats"),
        (["rollback", "checkpoints/x@v2"], "one of the arguments --reason --close is required"),
        (["compare", "checkpoints/x@v1", "checkpoints/x@v1"], "nothing says where it left"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], says: str, finished: Fabricated, marin: Marin) -> None:
    said = marin("cutover", *arguments)
    assert (said.code, said.out) == (64, "")
    assert says in said.err


def test_other_data_is_said_to_be_other_batches(finished: Fabricated, marin: Marin) -> None:
    finished.declare(PARENT, child(global_batch_size=4))
    said = marin("cutover", "plan", "checkpoints/x@v1", "checkpoints/x@v2", "--json")
    assert (said.code, said.json["same_batches"]) == (0, False)


def test_a_run_that_was_interrupted_is_forked_through_a_hand_off(
    fabricated: Fabricated, marin: Marin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutover, "checkout", lambda: (HEAD, []))
    store = fabricated.store
    assert store.claim(PARENT.id, claim(1))
    folder = fabricated.folder / PARENT.id.path / "attempt-1"
    for name, text in run_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    store.close(PARENT.id, 1, End(state="failed", ended_at="now", failure="preempted", exit_code=143))
    fabricated.declare(PARENT, child())
    assert "add --parent-commit" in marin("cutover", "plan", "checkpoints/x@v1", "checkpoints/x@v2").err
    assert marin("cutover", "plan", "checkpoints/x@v1", "checkpoints/x@v2", "--parent-commit", PARENTS).code == 0
    refused = marin("cutover", "fork", "checkpoints/x@v2").err
    assert "would have to wait until it is finished" in refused
    target = re.search(r'"handoffs/checkpoints/x", "v1", "(.*)"\)', refused)
    assert target is not None

    handoff = lab.adopted("handoffs/checkpoints/x", "v1", target[1])
    fabricated.declare(PARENT, child(handoff))
    assert marin("cutover", "plan", "checkpoints/x@v1", "checkpoints/x@v2", "--parent-commit", PARENTS).code == 0
    said = marin("cutover", "fork", "checkpoints/x@v2", "--json")
    assert (said.code, said.json["handed_off"]) == (0, target[1])
    assert (folder / "checkpoints" / str(AT) / "held").exists()
    assert find_point(Path(target[1]), AT) == find_point(folder, AT)
    fabricated.declare(PARENT, child(replace(handoff, build_config=lab.adopted("a", "v1", "/elsewhere").build_config)))
    assert "is adopted from /elsewhere" in marin("cutover", "fork", "checkpoints/x@v2").err


def test_housekeeping_leaves_records_and_hand_offs_alone(fabricated: Fabricated, marin: Marin) -> None:
    at = fabricated.folder / ".cutovers" / CHILD.path / "handoff"
    handoff = lab.adopted("handoffs/checkpoints/x", "v1", str(at))
    fabricated.declare(handoff)
    fabricated.build(handoff, payload=f"file://{at}")
    at.mkdir(parents=True)
    (at / "data").write_text("data")
    found = marin("gc", "--unreferenced", "--delete", "--yes", "--json")
    assert (found.code, found.json["plan"]["items"]) == (0, [])
    assert (at / "data").exists()


def test_a_fork_is_declared_with_the_run_that_it_leaves(tmp_path: Path) -> None:
    step = child()
    assert PARENT in step.deps
    job = step.symbolic_config
    assert isinstance(job, TrainJob)
    assert job.earlier_run == "artifact:checkpoints/x@v1"
    assert checkpoint_keys(step) == ("step-000008", "step-000010")  # none of the parent's
    with pytest.raises(ConfigError, match="has no step 11: it ends at 10"):
        lab.fork(PARENT, step=11)
    with pytest.raises(ConfigError, match="mixtures/x@v1 is no training run"):
        lab.fork(MIX, step=1)
    with pytest.raises(ConfigError, match="give one of them"):
        child(start_from=PARENT)


def test_two_files_are_compared_without_a_plan(tmp_path: Path, fabricated: Fabricated, marin: Marin) -> None:
    for name, delta in (("control", 0.0), ("same", 0.0), ("worse", 0.1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(rows(delta))
    control = str(tmp_path / "control" / "metrics.jsonl")
    same = marin("cutover", "compare", control, str(tmp_path / "same"), "--from", "4", "--steps", "6")
    assert (same.code, same.out.splitlines()[-1]) == (0, "go")
    assert "not planned" in same.out
    worse = marin("cutover", "compare", control, str(tmp_path / "worse"), "--from", "4", "--steps", "6", "--json")
    assert (worse.code, worse.json["go"], worse.json["planned"]) == (1, False, False)
    short = marin("cutover", "compare", control, str(tmp_path / "same"), "--from", "4", "--json")
    assert (short.code, short.json["missing"][0]) == (1, STEPS)


TOPICS = """
from marin_core import experiment as lab

raw = lab.raw_source("raw/topics", "v1", lab.PythonStdlib(domains=("topics",)), license="PSF-2.0")
topics = lab.filtered("filtered/topics", "v1", raw, filters=[lab.MinCharacters(characters=100)], shards=1)
bpe = lab.tokenizer("tokenizer/topics", "v1", [topics], vocab_size=300)
data = lab.mixture("mixtures/topics", "v1", {lab.tokenized("tokenized/topics", "v1", topics, bpe): 1.0}, sequence_length=32)
model = lab.moe_tiny(vocab_size=300, layers=1)


def train(version, **options):
    return lab.train_lm(
        "checkpoints/topics", version, data, model=model, optimizer=lab.AdamW(schedule=lab.Wsd(warmup_steps=2)), num_steps=8,
        global_batch_size=4, checkpoints=lab.CheckpointPolicy(permanent_every_steps=4), **options,
    )


run = train("v1")
EXPERIMENT = lab.experiment("topics", run, train("v2", fork=lab.fork(run, step=4)), question="?", hypothesis="!")
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_real_fork_is_launched_in_a_session_of_its_own_and_is_its_parent(
    tmp_path: Path, marin: Marin, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab_in_cutover").mkdir()
    (tmp_path / "lab_in_cutover" / "__init__.py").write_text("")
    (tmp_path / "lab_in_cutover" / "topics.py").write_text(TOPICS)
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    environment = {
        "MARIN_PREFIX": str(tmp_path / "store"),
        "MARIN_EXPERIMENTS": "lab_in_cutover",
        "DAGSTER_HOME": str(tmp_path),
        "PYTHONPATH": f"{tmp_path}:{PROJECT}",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cutover, "checkout", lambda: (HEAD, []))
    monkeypatch.setattr(cutover, "STATE", tmp_path)
    subprocess.run(
        [sys.executable, "-m", "marin_assets.cli", "materialize", "checkpoints/topics@v1"], check=True, stdout=subprocess.DEVNULL
    )
    runs = ("checkpoints/topics@v1", "checkpoints/topics@v2")
    fast = ("--threshold", "throughput_ratio=1e-6", "--threshold", "memory_ratio=1e6")  # how busy a machine is proves nothing
    assert marin("cutover", "plan", *runs, "--control-steps", "4", "--parent-commit", PARENTS, *fast).code == 0
    assert marin("cutover", "fork", runs[1]).code == 0
    launched = marin("cutover", "launch", runs[1])
    assert launched.code == 0, launched.err
    store = Store(str(tmp_path / "store"))
    child = ArtifactId.parse(runs[1])
    wait_for("the fork", lambda: store.record(child))
    parents, forks = store.record(ArtifactId.parse(runs[0])), store.record(child)
    assert parents is not None
    assert forks is not None
    assert forks.content_digest == parents.content_digest
    compared = marin("cutover", "compare", *runs, "--json")
    assert (compared.code, compared.json["loss"]["mean"], compared.json["shares_past"]) == (0, 0.0, True)
    kinds = [each.kind for each in CutoverRecord(store.objects, child).entries()]
    assert kinds == ["plan", "fork", "launch", "live", "compare"]


def test_the_documents_name_every_action_and_option() -> None:
    (commands,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    (actions,) = (each for each in commands.choices["cutover"]._actions if isinstance(each, argparse._SubParsersAction))
    for document in ("docs/how-to/cut-over.md", "docs/reference/cli.md"):
        text = (PROJECT / document).read_text()
        for name, action in actions.choices.items():
            assert f"cutover {name}" in text, f"{document}: {name}"
            options = {option for each in action._actions for option in each.option_strings if option.startswith("--")} - {
                "--help",
                "--json",
            }
            assert all(option in text for option in options), f"{document}: {name} {options}"
