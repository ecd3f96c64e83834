"""A lab in a temporary folder: real assets, a real instance, real job processes."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from marin_assets.cli import main
from marin_assets.factory import build_definitions
from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_core.artifact import ArtifactId, ArtifactStep, Record, Store
from marin_core.artifact.code import code_table
from marin_core.experiment import experiment
from tests.assets.fabricated import Fabricated
from tests.faults.drill import ForkLauncher, Zygote


@dataclass
class LabUnderTest:
    """Materializes handles as Dagster would, with a store and an instance of its own."""

    folder: Path
    instance: dg.DagsterInstance
    targets: list[ArtifactStep] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return Store(f"file://{self.folder}/store")

    def materialize(self, step: ArtifactStep, partition: str | None = None, *, rebuild: bool = False) -> dg.ExecuteInProcessResult:
        defs = build_definitions([experiment("under_test", step, question="?", hypothesis="!")])
        key = asset_key(step.id)
        op = defs.get_assets_def(key).op.name
        return dg.materialize(
            [each for each in defs.assets or () if isinstance(each, dg.AssetsDefinition)],
            selection=[key],
            partition_key=partition,
            instance=self.instance,
            resources={"lab": Lab(prefix=self.store.prefix)},
            run_config={"ops": {op: {"config": {"rebuild": rebuild}}}},
            raise_on_error=False,
        )

    def record(self, step: ArtifactStep, partition: str | None = None) -> Record:
        found = self.store.record(ArtifactId(step.name, step.version, partition))
        assert found is not None
        return found

    def jobs(self) -> list[Path]:
        folder = self.folder / "store" / ".jobs"
        return sorted(folder.iterdir()) if folder.exists() else []


remembered_code_table = cache(code_table)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabUnderTest]:
    """Dagster keeps its events in memory, and the project's code is read once: either took as long as everything else together."""
    monkeypatch.setattr("marin_core.artifact.drift.code_table", remembered_code_table)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield LabUnderTest(tmp_path, instance)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


@pytest.fixture
def forked_jobs(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are forked from a process that has imported everything, for tests of what becomes of them and not of how they start."""
    monkeypatch.setattr("marin_assets.lab.LocalLauncher", partial(ForkLauncher, zygote=zygote.address))


def failure(result: dg.ExecuteInProcessResult) -> str:
    """What a person reads about a failed step."""
    events = [event for event in result.all_events if event.is_step_failure]
    assert len(events) == 1
    data = events[0].step_failure_data
    assert data.user_failure_data is not None, data.error
    return str(data.user_failure_data.description)


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Metadata of the one materialization, as plain values."""
    (event,) = result.get_asset_materialization_events()
    return {name: value.value for name, value in event.materialization.metadata.items()}


def checks(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def write_documents(path: Path, texts: list[str]) -> None:
    """A gzip JSONL file of documents, as curators hand them over."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": str(number), "text": text}) + "\n")


def prose(seed: int, documents: int = 20) -> list[str]:
    return [f"Document {seed}-{number} says that the sum of {seed} and {number} is {seed + number}. " * 8 for number in range(documents)]


@pytest.fixture
def fabricated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fabricated:
    """A store without jobs, and experiments that a test declares."""
    lab = Fabricated(tmp_path / "store")
    monkeypatch.setenv("MARIN_PREFIX", str(lab.folder))
    monkeypatch.setattr(
        "marin_assets.experiments.load_experiments",
        lambda: (experiment("under_test", *lab.targets, question="?", hypothesis="!"),) if lab.targets else (),
    )
    return lab


class Said:
    """What one `marin` command said, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.out)


@pytest.fixture
def marin(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a `marin` command in this process."""

    def run(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(arguments)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run
