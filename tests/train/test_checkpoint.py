"""Checkpoints come back bit for bit, onto any mesh, whole or in part; damaged ones are set aside; only what should be kept is."""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from orbax.checkpoint import v1 as ocp

from marin_core.artifact.objects import LocalObjects
from marin_core.errors import ConfigError, InfrastructureError
from marin_core.model.mesh import make_mesh
from marin_core.report import SilentReporter
from marin_core.train.checkpoint import mirror as mirror_module
from marin_core.train.checkpoint import snapshot as snapshot_module
from marin_core.train.checkpoint import store as store_module
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.checkpoint.metadata import METADATA_FILE, CheckpointMetadata
from marin_core.train.checkpoint.mirror import Mirror
from marin_core.train.checkpoint.store import CheckpointStore, flatten

POLICY = CheckpointPolicy(permanent_every_steps=4)


class State(NamedTuple):
    """Arrays of the kinds that a training has, under the names of its state."""

    params: dict[str, Any]
    optimizer_state: Any
    balancer_state: Any
    step: Any


def state(step: int, mesh: Mesh | None = None) -> State:
    """Other numbers at every step, spread over a mesh by one dimension or the other."""
    rng = np.random.default_rng(step)

    def place(array: Any, *spec: str | None) -> jax.Array:
        sharding = SingleDeviceSharding(jax.devices()[0]) if mesh is None else NamedSharding(mesh, PartitionSpec(*spec))
        placed: jax.Array = jax.device_put(array, sharding)
        return placed

    experts = place(rng.normal(size=(2, 8, 4, 8)).astype(np.float32), None, "expert")
    output = place(rng.normal(size=(16, 24)).astype(np.float32), "rack", "expert")
    moment = place(rng.normal(size=(16, 24)).astype(jnp.bfloat16), None, "expert")
    gain = place(rng.normal(size=24).astype(np.float32))
    params = {"experts": experts, "output": output, "gain": gain}
    return State(params, {"mu": {"output": moment}, "count": place(np.int32(step))}, (place(gain * 2),), place(np.int32(step)))


def abstract(mesh: Mesh | None = None) -> State:
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state(0, mesh))
    return cast(State, shapes)


def assert_same(ours: Any, theirs: Any) -> None:
    ours, theirs = flatten(ours), flatten(theirs)
    assert ours.keys() == theirs.keys()
    for path, array in ours.items():
        assert (array.dtype, array.shape) == (theirs[path].dtype, theirs[path].shape)
        assert np.asarray(array).tobytes() == np.asarray(theirs[path]).tobytes(), path


class Listener(SilentReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str) -> None:
        self.lines.append(message)


def saved(run_dir: Path, steps: dict[int, bool], policy: CheckpointPolicy = POLICY) -> None:
    """Save some steps; True makes a checkpoint temporary."""
    with CheckpointStore(run_dir, policy) as store:
        for step, temporary in steps.items():
            store.save(step, state(step), temporary)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints 4 and 8, kept, and 9, temporary; tests copy it."""
    run_dir = tmp_path_factory.mktemp("three")
    saved(run_dir, {4: False, 8: False, 9: True})
    return run_dir


@pytest.fixture
def copied(three: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(three, tmp_path / "run"))


# Policy -----------------------------------------------------------------------------------------------------------------


def test_what_is_due_is_decided_by_steps_and_by_time() -> None:
    policy = CheckpointPolicy(permanent_every_steps=6000, temporary_every_seconds=3600.0)
    assert [policy.due(step, 324_480, 3599.9) for step in (1, 6000, 6001, 324_480)] == [None, "permanent", None, "permanent"]
    assert [policy.due(step, 324_480, 3600.0) for step in (1, 6000)] == ["temporary", "permanent"]
    by_steps = CheckpointPolicy(permanent_every_steps=8, temporary_every_steps=2)
    assert [step for step in range(1, 11) if by_steps.due(step, 10, 0.0) == "temporary"] == [2, 4, 6]
    assert by_steps.permanent_steps(10) == (8, 10)
    assert CheckpointPolicy(permanent_every_steps=100).permanent_steps(10) == (10,)


@pytest.mark.parametrize("field", ["permanent_every_steps", "temporary_every_seconds", "temporary_days", "deadline_seconds"])
def test_a_policy_without_sense_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"field '{field}' has value 0"):
        CheckpointPolicy(**({"permanent_every_steps": 1} | {field: 0}))


# There and back ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [(None, (2, 4)), ((2, 4), (4, 2)), ((4, 2), None), ((1, 2), (2, 4))], ids=str)
def test_a_state_returns_bit_for_bit_onto_another_mesh(shapes: tuple[tuple[int, int] | None, ...], tmp_path: Path) -> None:
    before, after = (None if shape is None else make_mesh(*shape) for shape in shapes)
    original = state(7, before)
    with CheckpointStore(tmp_path, POLICY, fingerprint="f1", source_commit="abc") as store:
        store.save(8, original, temporary=False)
        store.wait()
        restored = store.restore_newest(abstract(after), Listener())
        assert restored is not None
        assert_same(restored, original)
        assert jax.tree.all(jax.tree.map(lambda leaf, place: leaf.sharding == place.sharding, restored, abstract(after)))
        store.save(12, restored, temporary=False)
        store.wait()
        first, second = store.metadata(8), store.metadata(12)
    assert first.content_digest == second.content_digest
    assert first.mesh == ({} if shapes[0] is None else dict(zip(("rack", "expert"), shapes[0], strict=True)))
    assert (first.fingerprint, first.source_commit, first.is_temporary, first.processes) == ("f1", "abc", False, 1)
    assert first.bytes == sum(array.nbytes for array in flatten(original).values())
    assert abs(first.saved_at - time.time()) < 3600


def test_a_step_may_take_over_the_state_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large arrays are copied, small ones aliased: what was saved is what was there, and the copy's memory is used again."""
    monkeypatch.setattr(snapshot_module, "HOST_BYTES", 1024)
    change = jax.jit(lambda given: jax.tree.map(lambda leaf: leaf * 2 + 1, given), donate_argnums=0)
    numbers, addresses = state(3), set()
    with CheckpointStore(tmp_path, POLICY) as store:
        for step in (4, 8, 12):
            expected = jax.tree.map(np.array, numbers)
            store.save(step, numbers, temporary=False)
            numbers = jax.block_until_ready(change(numbers))
            store.wait()
            assert_same(store.restore(step, abstract()), expected)
            addresses.add(store._snapshot._kept["params/output"].unsafe_buffer_pointer())
    assert len(addresses) == 1


def test_the_model_alone_is_read_without_the_rest(copied: Path) -> None:
    """Nothing of the optimizer is touched: its arrays may even have other shapes."""
    wanted = abstract()._replace(optimizer_state={"nu": jax.ShapeDtypeStruct((3,), np.float32)})
    restored = CheckpointStore(copied).restore_model(8, wanted)
    assert_same((restored.params, restored.balancer_state), (state(8).params, state(8).balancer_state))
    assert restored.optimizer_state == wanted.optimizer_state
    assert isinstance(restored.step, jax.ShapeDtypeStruct)


def test_parameters_alone_start_another_run(copied: Path) -> None:
    restored = CheckpointStore(copied).restore_partial(8, abstract(make_mesh(2, 4)), lambda path: path.startswith("params/"))
    assert_same(restored.params, state(8).params)
    assert isinstance(restored.balancer_state[0], jax.ShapeDtypeStruct)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": jax.ShapeDtypeStruct((), np.float32)}, r"has int32\[\] at step, the run expects float32\[\]"),
        ({"optimizer_state": ()}, r"has int32\[\] at optimizer_state/count, the run expects nothing"),
    ],
)
def test_a_state_of_other_arrays_is_refused_and_condemns_no_checkpoint(copied: Path, change: dict[str, Any], message: str) -> None:
    place = SingleDeviceSharding(jax.devices()[0])
    other = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), abstract()._replace(**change))
    with CheckpointStore(copied, POLICY) as store, pytest.raises(ConfigError, match=message):
        store.restore_newest(other, Listener())
    assert CheckpointStore(copied).steps() == [4, 8, 9]


def test_where_nothing_was_saved_nothing_is_restored(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, POLICY) as store:
        assert store.restore_newest(abstract(), Listener()) is None
        with pytest.raises(ConfigError, match="no checkpoint of step 3"):
            store.restore(3, abstract())
    assert CheckpointStore(tmp_path / "nowhere").restore_newest(abstract(), Listener()) is None
    assert not (tmp_path / "nowhere").exists()


# Damage -----------------------------------------------------------------------------------------------------------------


def largest(checkpoint: Path) -> Path:
    return max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def cut(checkpoint: Path) -> None:
    path = largest(checkpoint)
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(checkpoint: Path) -> None:
    """In the middle of the arrays' bytes: what is read still parses."""
    path = largest(checkpoint)
    content = bytearray(path.read_bytes())
    content[content.index(np.asarray(state(int(checkpoint.name)).params["output"]).tobytes()[:16])] ^= 1
    path.write_bytes(content)


def forge_a_digest(checkpoint: Path) -> None:
    path = checkpoint / METADATA_FILE
    values = json.loads(path.read_text())
    values["leaves"]["step"]["digest"] = "0" * 16
    path.write_text(json.dumps(values))


DAMAGES = {
    "cut": (cut, r"bytes instead of"),
    "flipped": (flip_a_bit, r"params/output .* not what was saved"),
    "missing file": (lambda checkpoint: largest(checkpoint).unlink(), r"is missing"),
    "missing metadata": (lambda checkpoint: (checkpoint / METADATA_FILE).unlink(), r"metadata.json: FileNotFoundError"),
    "cut metadata": (lambda checkpoint: (checkpoint / METADATA_FILE).write_text('{"step"'), r"metadata.json: JSONDecodeError"),
    "other metadata": (forge_a_digest, r"content_digest isn't that of the leaves"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(damage: str, copied: Path) -> None:
    harm, reason = DAMAGES[damage]
    harm(copied / "checkpoints" / "9")
    listener = Listener()
    with CheckpointStore(copied, POLICY) as store:
        restored = store.restore_newest(abstract(), listener)
        assert store.steps() == [4, 8]
    assert_same(restored, state(8))
    (line,) = listener.lines
    assert f"step 9 can't be read and was moved to {copied / 'unreadable' / '9'}" in line
    assert re.search(reason, line)


def test_several_damaged_checkpoints_in_a_row_are_all_set_aside(copied: Path) -> None:
    (copied / "unreadable" / "9").mkdir(parents=True)
    cut(copied / "checkpoints" / "8")
    flip_a_bit(copied / "checkpoints" / "9")
    listener = Listener()
    with CheckpointStore(copied, POLICY) as store:
        assert_same(store.restore_newest(abstract(), listener), state(4))
        assert len(listener.lines) == 2
        assert sorted(path.name for path in (copied / "unreadable").iterdir()) == ["8", "9", "9.2"]
        cut(copied / "checkpoints" / "4")
        assert store.restore_newest(abstract(), listener) is None


def test_a_reader_skips_what_is_damaged_and_moves_nothing(copied: Path) -> None:
    flip_a_bit(copied / "checkpoints" / "9")
    listener = Listener()
    assert_same(CheckpointStore(copied).restore_newest(abstract(), listener), state(8))
    assert listener.lines[0].startswith("Checkpoint of step 9 can't be read: ")
    assert CheckpointStore(copied).steps() == [4, 8, 9]


@pytest.mark.parametrize("error", [MemoryError("no room"), ValueError("UNAVAILABLE: the store is away")], ids=str)
def test_what_another_attempt_may_not_meet_condemns_no_checkpoint(error: Exception, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(ocp, "load", fail)
    with CheckpointStore(copied, POLICY) as store, pytest.raises(InfrastructureError, match="step 9 can't be read for now"):
        store.restore_newest(abstract(), Listener())
    assert CheckpointStore(copied).steps() == [4, 8, 9]


# Keeping ----------------------------------------------------------------------------------------------------------------


def test_permanent_checkpoints_stay_and_one_temporary_rolls(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, POLICY) as store:
        seen = []
        for step in range(1, 10):
            store.save(step, state(step), temporary=step % 4 > 0)
            store.wait()
            seen.append(store.steps())
        assert seen == [[1], [2], [3], [4], [4, 5], [4, 6], [4, 7], [4, 8], [4, 8, 9]]
        assert sorted(store.permanent_digests()) == [4, 8]
        assert store.permanent_digests()[8] == store.metadata(8).content_digest


def test_a_held_checkpoint_outlasts_newer_ones_until_it_is_released(tmp_path: Path) -> None:
    saved(tmp_path, {4: False, 5: True})
    with CheckpointStore(tmp_path, POLICY) as store:
        store.hold(5, "cut-over of 12 March")
        with pytest.raises(ConfigError, match="no checkpoint of step 6"):
            store.hold(6, "none")
    saved(tmp_path, {6: True, 7: True})
    with CheckpointStore(tmp_path, POLICY.changed(temporary_days=1e-9)) as store:
        assert (store.steps(), store.held()) == ([4, 5, 7], [5])
        assert_same(store.restore(5, abstract()), state(5))
        store.release(5)
    saved(tmp_path, {8: False})
    assert CheckpointStore(tmp_path).steps() == [4, 8]


def test_old_temporaries_go_when_a_run_starts_but_never_the_newest(copied: Path) -> None:
    """A superseded temporary is left where a run was killed between a commit and the clearing up."""
    for step, days in ((8, 3.0), (9, 30.0)):
        path = copied / "checkpoints" / str(step) / METADATA_FILE
        metadata = CheckpointMetadata.from_json(json.loads(path.read_text()))
        path.write_text(metadata.changed(is_temporary=True, saved_at=time.time() - days * 86_400).model_dump_json())
    assert CheckpointStore(copied).steps() == [4, 8, 9]
    for days, expected in ((4.0, [4, 8, 9]), (2.0, [4, 9])):
        with CheckpointStore(copied, POLICY.changed(temporary_days=days)) as store:
            assert store.steps() == expected


def test_what_an_interrupted_save_left_is_cleared_away(copied: Path) -> None:
    unfinished = copied / "checkpoints" / "12"
    shutil.copytree(copied / "checkpoints" / "9", unfinished)
    (unfinished / METADATA_FILE).unlink()
    (copied / "checkpoints.unfinished").write_text("12")
    assert CheckpointStore(copied).steps() == [4, 8, 9]
    assert unfinished.exists()
    with CheckpointStore(copied, POLICY) as store:
        assert not unfinished.exists()
        assert_same(store.restore_newest(abstract(), Listener()), state(9))


def test_a_run_that_went_back_replaces_and_removes_later_checkpoints(copied: Path) -> None:
    with CheckpointStore(copied, POLICY) as store:
        store.delete(9)
        store.delete(9)
        assert store.steps() == [4, 8]
        store.save(8, state(88), temporary=False)
        store.wait()
        assert_same(store.restore(8, abstract()), state(88))


def test_a_directory_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the run's directory should be")
    with pytest.raises(InfrastructureError, match=r"can't be written \(open\): NotADirectoryError"):
        CheckpointStore(tmp_path / "run", POLICY)


def test_a_save_that_fails_is_told_at_the_next_wait_and_the_one_before_stays(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(122, "Disk quota exceeded")

    with CheckpointStore(copied, POLICY) as store:
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "write_metadata", fail)
            store.save(10, state(10), temporary=True)
            with pytest.raises(InfrastructureError, match=r"step 10 \(4,552 bytes\) in .* can't be saved: OSError: .*quota"):
                store.wait()
        assert not (copied / "checkpoints" / "10").exists()
        store.save(11, state(11), temporary=True)
    assert CheckpointStore(copied).steps() == [4, 8, 11]


# In a bucket too --------------------------------------------------------------------------------------------------------


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_whatever_becomes_of_checkpoints_becomes_of_their_copies(tmp_path: Path) -> None:
    run_dir, bucket = tmp_path / "run", tmp_path / "bucket"
    run_dir.mkdir()
    (run_dir / "run.json").write_text("{}")
    with CheckpointStore(run_dir, POLICY, mirror=Mirror(LocalObjects(bucket), "attempt-1")) as store:
        for step in (4, 5, 6, 8, 9):
            store.save(step, state(step), temporary=step % 4 > 0)
            store.wait()
            assert tree(bucket / "attempt-1") == tree(run_dir)
            if step == 5:
                store.hold(5, "a cut-over may return to it")
                assert (bucket / "attempt-1/checkpoints/5/held").exists()
        assert store.steps() == [4, 5, 8, 9]
        store.release(5)
        store.delete(8)
        assert tree(bucket / "attempt-1") == tree(run_dir)
    victim = max((run_dir / "checkpoints/9/state").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    victim.write_bytes(bytes(victim.stat().st_size))
    with CheckpointStore(run_dir, POLICY, mirror=Mirror(LocalObjects(bucket), "attempt-1")) as store:
        assert_same(store.restore_newest(abstract(), Listener()), state(5))
    assert (bucket / "attempt-1/unreadable/9/metadata.json").exists()
    assert tree(bucket / "attempt-1") == tree(run_dir)
    fetched = tmp_path / "elsewhere"
    Mirror(LocalObjects(bucket), "attempt-1").fetch(fetched)
    assert CheckpointStore(fetched).steps() == [4, 5]


def test_a_save_that_the_bucket_refuses_is_an_error_and_stays_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*arguments: object) -> None:
        raise InfrastructureError("the bucket is full", advice="Make room.")

    monkeypatch.setattr(mirror_module, "SHORTEST_PAUSE_SECONDS", 1e9)  # no second try
    with CheckpointStore(tmp_path / "run", POLICY, mirror=Mirror(LocalObjects(tmp_path), "a")) as store:
        monkeypatch.setattr(LocalObjects, "upload", refuses)
        store.save(4, state(4), temporary=False)
        with pytest.raises(InfrastructureError, match=r"step 4 .* can't be saved: the bucket is full"):
            store.wait()
        assert_same(store.restore(4, abstract()), state(4))
