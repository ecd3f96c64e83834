"""A run's folder in a store: whatever moment the sender dies at, what it leaves is a run that can be gone on with."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.artifact.objects import FileState, LocalObjects, Objects, open_objects
from marin_core.errors import InfrastructureError
from marin_core.train.checkpoint import mirror as mirror_module
from marin_core.train.checkpoint.metadata import HELD_FILE, METADATA_FILE, CheckpointMetadata, content_digest
from marin_core.train.checkpoint.mirror import RUN_FILE, Mirror
from tests.storage.faults import FaultyProxy, Request
from tests.storage.gcs import FakeGcs


class Run:
    """The folder of a run without arrays: a checkpoint holds the rows of `metrics.jsonl` that came before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[str] = []
        self.life = 0
        """Raised whenever the run goes back, so that steps which are made again are told from the former ones."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN_FILE).write_text("{}")

    @property
    def steps(self) -> list[int]:
        return sorted(int(path.parent.name) for path in self.folder.glob(f"checkpoints/*/{METADATA_FILE}"))

    def train(self) -> None:
        self.rows.append(f"step {len(self.rows)} of life {self.life}")
        self._write()

    def save(self) -> None:
        """Save, and remove older checkpoints that nothing keeps, as a store of checkpoints does."""
        place = self._place(len(self.rows))
        shutil.rmtree(place, ignore_errors=True)
        (place / "state/d").mkdir(parents=True)
        (place / "state/rows").write_text("\n".join(self.rows))
        (place / "state/d/newest").write_text(self.rows[-1])
        files = {"state/rows": len("\n".join(self.rows)), "state/d/newest": len(self.rows[-1])}
        (place / METADATA_FILE).write_text(metadata(len(self.rows), files).model_dump_json())
        for step in self.steps[:-1]:
            if step % 3 and not (self._place(step) / HELD_FILE).exists():
                shutil.rmtree(self._place(step))

    def go_back(self) -> None:
        """To the oldest checkpoint: none that is newer may be found again."""
        if self.steps:
            for step in self.steps[1:]:
                shutil.rmtree(self._place(step))
            del self.rows[self.steps[0] :]
            self.life += 1

    def set_aside(self) -> None:
        if self.steps:
            target = self.folder / f"unreadable/{self.steps[-1]}.{self.life}"
            target.parent.mkdir(exist_ok=True)
            if not target.exists():
                self._place(self.steps[-1]).rename(target)
            self.go_back()

    def begin_to_save(self) -> None:
        """What is in the making, which nobody may take for a checkpoint."""
        (self._place(1000) / "state").mkdir(parents=True, exist_ok=True)
        (self._place(1000) / "state/rows").write_text("half")
        (self.folder / "checkpoints.unfinished").write_text("1000")
        (self.folder / "metrics.jsonl.new").write_text("half")

    def hold(self) -> None:
        if self.steps:
            (self._place(self.steps[-1]) / HELD_FILE).write_text("why")

    def _place(self, step: int) -> Path:
        return self.folder / "checkpoints" / str(step)

    def _write(self) -> None:
        (self.folder / "metrics.jsonl").write_text("\n".join(self.rows))

    def left(self) -> dict[str, bytes]:
        """What should be in the store."""
        found = {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        return {name: content for name, content in found.items() if "1000" not in name and not name.endswith((".new", ".unfinished"))}


def metadata(step: int, files: dict[str, int]) -> CheckpointMetadata:
    return CheckpointMetadata(
        step=step,
        is_temporary=step % 3 > 0,
        saved_at=0.0,
        fingerprint="f",
        source_commit=None,
        mesh={},
        processes=1,
        bytes=0,
        leaves={},
        files=files,
        content_digest=content_digest({}),
    )


def found_in(objects: Objects, folder: str) -> dict[str, bytes]:
    return objects.read_many([f"{folder}/{name}" for name in objects.files(folder)])


class Mortal(LocalObjects):
    """Does so many changes and no more; the last may have been made although it is an error."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.left = 10**9
        self.does_the_last = False
        self._lock = threading.Lock()

    def _change(self) -> bool:
        with self._lock:
            self.left -= 1
            return self.left >= 0

    def upload(self, source: Path, path: str) -> None:
        alive = self._change()
        if alive or (self.left == -1 and self.does_the_last):
            super().upload(source, path)
        if not alive:
            raise InfrastructureError("the network is gone", advice="Wait.")

    def delete(self, path: str) -> None:
        alive = self._change()
        if alive or (self.left == -1 and self.does_the_last):
            super().delete(path)
        if not alive:
            raise InfrastructureError("the network is gone", advice="Wait.")


def gone_on_with(objects: Objects, folder: Path) -> list[int]:
    """Steps of the checkpoints that another machine finds, all of which must be sound and fit the metrics beside them."""
    Mirror(objects, "attempt-1").fetch(folder)
    rows = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    steps = sorted(int(path.name) for path in folder.glob("checkpoints/*"))
    for step in steps:
        place = folder / f"checkpoints/{step}"
        kept = CheckpointMetadata.model_validate_json((place / METADATA_FILE).read_text())
        assert kept.step == step
        saved = (place / "state/rows").read_text().splitlines()
        assert len(saved) == step
        assert (place / "state/d/newest").read_text() == saved[-1]
        assert rows[:step] == saved, "a checkpoint beside metrics that are older, or of another life"
    return steps


Act = Literal["train", "save", "go back", "set aside", "begin to save", "hold"]
ACTS = st.lists(
    st.sampled_from(["train", "train", "save", "save", "go back", "set aside", "begin to save", "hold"]), min_size=1, max_size=25
)


@settings(max_examples=20, deadline=None)
@given(acts=ACTS, cuts=st.lists(st.integers(0, 12), max_size=25), does_the_last=st.booleans())
def test_whenever_the_sender_dies_what_is_there_can_be_gone_on_with(
    acts: list[Act], cuts: list[int], does_the_last: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("lives")
    run, objects = Run(folder / "run"), Mortal(folder / "store")
    objects.does_the_last = does_the_last
    mirror = Mirror(objects, "attempt-1")
    cut_short = iter(cuts)
    for number, act in enumerate(["train", "save", *acts]):
        before = run.steps if number else []
        getattr(run, act.replace(" ", "_"))()
        if act == "train" and number:
            continue  # nobody sends single steps
        cut = next(cut_short, None)
        if cut is not None:
            objects.left = cut
            with suppress(InfrastructureError):
                mirror.update(run.folder)
            found = gone_on_with(objects, folder / f"cut-{number}")
            assert set(found) <= {*before, *run.steps}
            stays = set(before) - ({len(run.rows)} if act == "save" else set())  # one that is replaced isn't there for a while
            assert not stays or not run.steps or max(found, default=0) >= min(max(stays), max(run.steps)), "a checkpoint was lost"
            objects.left = 10**9
        mirror.update(run.folder)
        assert {path.removeprefix("attempt-1/"): content for path, content in found_in(objects, "attempt-1").items()} == run.left()
        assert gone_on_with(objects, folder / f"whole-{number}") == run.steps
    shutil.rmtree(folder)


def test_nothing_is_gone_on_with_before_all_of_it_was_taken_over(tmp_path: Path) -> None:
    """Whoever takes a run over writes `run.json` last, and a folder without it is none."""
    run, objects = Run(tmp_path / "run"), Mortal(tmp_path / "store")
    run.train()
    run.save()
    first, second = Mirror(objects, "attempt-1"), Mirror(objects, "attempt-2")
    assert not first.stands()
    first.update(run.folder)
    for cut in range(5):  # three files of the checkpoint, and the metrics
        objects.left = cut
        with suppress(InfrastructureError):
            Mirror(objects, "attempt-2").begin(run.folder, first)
        assert not second.stands()
    objects.left = 10**9
    second.begin(run.folder, first)
    assert second.stands()


def test_a_checkpoint_that_lacks_a_file_is_not_taken_over(tmp_path: Path) -> None:
    run, objects = Run(tmp_path / "run"), LocalObjects(tmp_path / "store")
    for _ in range(2):
        for _ in range(3):
            run.train()
        run.save()
    Mirror(objects, "attempt-1").update(run.folder)
    objects.delete("attempt-1/checkpoints/6/state/d/newest")
    assert gone_on_with(objects, tmp_path / "missing") == [3]
    objects.replace("attempt-1/checkpoints/3/state/d/newest", b"")
    assert gone_on_with(objects, tmp_path / "cut") == []


# In a bucket ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture
def proxy(server: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with FaultyProxy(server.url) as proxy:
        for name, value in proxy.environment().items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def bucket(proxy: FaultyProxy, tmp_path: Path) -> Objects:
    return open_objects(f"gs://lab/{tmp_path.name}")


def sent(proxy: FaultyProxy) -> list[str]:
    """Names of what was uploaded since the last look, without their folders."""
    names = [request.name.rpartition("attempt-")[2] for request, _ in proxy.requests if request.is_upload]
    proxy.requests.clear()
    return sorted(names)


def test_a_bucket_gets_each_file_once_and_what_it_has_is_copied_within(proxy: FaultyProxy, bucket: Objects, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    for _ in range(3):
        run.train()
    run.save()
    first = Mirror(bucket, "attempt-1")
    first.update(run.folder)
    files = ["checkpoints/3/metadata.json", "checkpoints/3/state/d/newest", "checkpoints/3/state/rows", "metrics.jsonl", "run.json"]
    assert sent(proxy) == [f"1/{name}" for name in files]
    first.update(run.folder)
    assert proxy.requests == []
    Mirror(bucket, "attempt-1").update(run.folder)  # of a process that knows nothing
    assert sent(proxy) == []
    elsewhere = tmp_path / "elsewhere"
    first.fetch(elsewhere)
    second = Mirror(bucket, "attempt-2")
    second.begin(elsewhere, first)
    assert sent(proxy) == ["2/run.json"]
    assert second.stands()
    (elsewhere / "metrics.jsonl").write_text("changed")
    second.update(elsewhere)
    assert sent(proxy) == ["2/metrics.jsonl"]


def test_a_store_that_is_away_for_a_while_costs_no_more_than_that(
    proxy: FaultyProxy, bucket: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_STORE_TIMEOUT_SECONDS", "1")  # so long for one call with all its tries
    monkeypatch.setattr(mirror_module, "SHORTEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(mirror_module, "LONGEST_PAUSE_SECONDS", 0.01)
    run = Run(tmp_path / "run")
    run.train()
    run.save()
    refuses = threading.Event()
    refuses.set()

    def refused(request: Request) -> bool:
        if len(proxy.requests) > 10:
            refuses.clear()
        return refuses.is_set()

    proxy.next("500", refused, times=10**9)
    with pytest.raises(InfrastructureError):
        Mirror(bucket, "attempt-1").update(run.folder)
    mirror = Mirror(bucket, "attempt-1")
    mirror.update(run.folder, seconds=600)
    assert proxy.counts["500"] > 6  # more than the store's own client would bear
    assert gone_on_with(bucket, tmp_path / "elsewhere") == run.steps


def test_a_file_that_arrived_changed_is_not_gone_on_with(bucket: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "run")
    run.train()
    run.save()
    mirror = Mirror(bucket, "attempt-1")
    mirror.update(run.folder)
    download: Any = type(bucket).download

    def changed(self: Objects, path: str, target: Path) -> None:
        download(self, path, target)
        target.write_bytes(target.read_bytes().swapcase())

    monkeypatch.setattr(type(bucket), "download", changed)
    with pytest.raises(InfrastructureError, match="removed or changed while it was read"):
        mirror.fetch(tmp_path / "elsewhere")


def test_states_of_objects_know_what_they_hold(bucket: Objects, tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_bytes(b"content")
    bucket.upload(source, "a")
    bucket.copy("a", "b")
    states: dict[str, FileState] = bucket.files("")
    assert states["a"].md5 == states["b"].md5 == "9a0364b9e99bb480dd25e1f0284c8555"
    with pytest.raises(FileNotFoundError):
        bucket.copy("nothing", "c")
