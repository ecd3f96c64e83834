"""Checkpoints in bad times: processes killed in mid-save, stores that hang, full disks, little memory, gangs of other sizes.

What a process suffers here runs in a process of its own: `python -c "from tests.train import test_checkpoint_faults as t; t.FUNCTION()"`.
"""

import asyncio
import gc
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from marin_core import distributed
from marin_core.artifact.objects import LocalObjects
from marin_core.errors import InfrastructureError
from marin_core.model.mesh import make_mesh
from marin_core.report import SilentReporter
from marin_core.train.checkpoint import store as store_module
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.checkpoint.mirror import Mirror
from marin_core.train.checkpoint.store import CheckpointStore

ROOT = Path(__file__).parents[2]
POLICY = CheckpointPolicy(permanent_every_steps=100)


def command(function: str, *arguments: object) -> list[str]:
    script = f"import sys; from tests.train import test_checkpoint_faults as t; t.{function}(*sys.argv[1:])"
    return [sys.executable, "-c", script, *map(str, arguments)]


def told(function: str, *arguments: object, before: tuple[str, ...] = (), timeout: float = 280) -> str:
    """What a function of this module prints in a process of its own, which must end by itself and well."""
    done = subprocess.run([*before, *command(function, *arguments)], cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no disk of its own can be mounted here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def state(step: int, mebibytes: float = 1.0) -> dict[str, Any]:
    """Eight arrays, all numbers of which are the step."""
    return {"params": {f"w{i}": jnp.full((int(mebibytes * 2**20) // 32,), step, jnp.float32) for i in range(8)}, "step": jnp.int32(step)}


def abstract(mebibytes: float = 1.0) -> Any:
    place = SingleDeviceSharding(jax.devices()[0])
    shapes = jax.eval_shape(lambda: state(0, mebibytes))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes)


def restored_step(run_dir: Path, mebibytes: float = 1.0) -> int:
    """The step of the newest checkpoint, whose arrays must all be of it; nothing may have been unreadable, nothing may be left over."""
    with CheckpointStore(run_dir, POLICY) as store:
        found: Any = store.restore_newest(abstract(mebibytes), SilentReporter())
    assert sorted(path.name for path in run_dir.iterdir()) == ["checkpoints"]
    if found is None:
        return 0
    step = int(found["step"])
    assert all(np.all(np.asarray(array) == step) for array in found["params"].values())
    return step


# Kill -9 ----------------------------------------------------------------------------------------------------------------


def save_for_ever(run_dir: str, reached: int) -> None:
    """Go on from the newest checkpoint, and print each step that is committed."""
    step = restored_step(Path(run_dir))
    os.write(reached, b"%d\n" % step)
    with CheckpointStore(Path(run_dir), POLICY) as store:
        while True:
            step += 1
            store.save(step, state(step), temporary=step % 3 > 0)
            store.wait()
            os.write(reached, b"%d\n" % step)


def kill_savers(run_dir: str, rounds: str, seed: str) -> None:
    """Fork a saver from this process, which has imported everything but started nothing; kill it at a random instant, and again."""
    rng = random.Random(int(seed))
    for _ in range(int(rounds)):
        reader, writer = os.pipe()
        saver = os.fork()
        if saver == 0:
            try:
                save_for_ever(run_dir, writer)
            finally:
                os._exit(1)
        os.close(writer)
        for _ in range(rng.randint(1, 3)):
            assert select.select([reader], [], [], 120)[0], "the saver hangs"
            last = os.read(reader, 1000)
            assert last, "the saver found its checkpoint damaged"
        select.select([reader], [], [], rng.uniform(0, 0.12))
        os.kill(saver, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(saver, 0)[1]) == -signal.SIGKILL
        said = (last + os.read(reader, 1000)).split()
        os.close(reader)
        print(int(said[-1]), flush=True)


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.long])])
def test_a_process_killed_in_mid_save_loses_nothing_that_was_committed(rounds: int, tmp_path: Path) -> None:
    committed = [int(line) for line in told("kill_savers", tmp_path, rounds, rounds).split()]
    assert len(committed) == rounds
    assert committed == sorted(committed)
    assert restored_step(tmp_path) >= committed[-1]
    with CheckpointStore(tmp_path, POLICY) as store:
        kept = store.steps()
    assert [step for step in range(3, kept[-1], 3) if step not in kept] == []


# Stores that hang -------------------------------------------------------------------------------------------------------


def hang(*arguments: Any, **named: Any) -> None:
    threading.Event().wait()


async def hang_in_a_loop(*arguments: Any, **named: Any) -> None:
    await asyncio.Event().wait()


HANGING = {
    "making the directory": ("etils.epath.gpath.PosixGPath.mkdir", hang),
    "writing arrays": ("orbax.checkpoint._src.serialization.serialization.async_serialize_from_host", hang_in_a_loop),
    "writing the commit file": ("etils.epath.gpath.PosixGPath.write_text", hang),
    "writing the metadata": ("marin_core.train.checkpoint.store.write_metadata", hang),
}


def save_to_hanging_stores(run_dir: str) -> None:
    jax.config.update("jax_enable_compilation_cache", False)  # it makes directories too, which aren't meant to hang
    policy = POLICY.changed(deadline_seconds=1.0)
    for step, (where, (target, hanging)) in enumerate(HANGING.items(), 2):
        with patch(target, hanging):
            try:
                with CheckpointStore(Path(run_dir), policy) as store:
                    store.save(step, state(step), temporary=True)
                    store.wait()
            except InfrastructureError as error:
                print(f"{where}: {error.message}")
    # Now the process ends, with all of those threads.


def save_to_a_bucket_that_hangs(run_dir: str, bucket: str) -> None:
    jax.config.update("jax_enable_compilation_cache", False)
    mirror = Mirror(LocalObjects(Path(bucket)), "attempt-1")
    with CheckpointStore(Path(run_dir), POLICY.changed(deadline_seconds=5.0), mirror=mirror) as store:
        with patch.object(LocalObjects, "upload", hang):
            store.save(1, state(1), temporary=True)
            try:
                store.wait()
            except InfrastructureError as error:
                print(error.message)
        print(store.steps())


def test_a_bucket_that_hangs_is_one_too(tmp_path: Path) -> None:
    first, second = told("save_to_a_bucket_that_hangs", tmp_path / "run", tmp_path / "bucket", timeout=280).splitlines()
    assert first.startswith("The checkpoint of step 1 (1,048,580 bytes) in ")
    assert first.endswith(" didn't finish within 5 s")
    assert second == "[1]"  # what is on the disk is whole


def test_a_store_that_hangs_is_an_error_by_the_deadline_and_holds_no_process(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, POLICY) as store:
        store.save(1, state(1), temporary=True)
    lines = told("save_to_hanging_stores", tmp_path, timeout=280).splitlines()
    assert len(lines) == len(HANGING)
    for step, (line, where) in enumerate(zip(lines, HANGING, strict=True), 2):
        assert line.startswith(f"{where}: The checkpoint of step {step} (1,048,580 bytes) in {tmp_path / 'checkpoints'} didn't ")
        assert line.endswith(" within 1 s")
    assert restored_step(tmp_path) == 1


# Full disks -------------------------------------------------------------------------------------------------------------


def fill_a_disk(folder: str) -> None:
    with CheckpointStore(Path(folder), POLICY) as store:
        store.save(1, state(1), temporary=True)
        store.wait()
        store.save(2, state(2, mebibytes=16), temporary=True)
        try:
            store.save(3, state(3), temporary=True)
        except InfrastructureError as error:
            print(error.message)
        assert int(store.restore(1, abstract())["step"]) == 1
        store.save(4, state(4), temporary=True)
        store.wait()
        print(store.steps())


def test_a_disk_that_fills_up_in_mid_save_is_told_and_the_checkpoint_before_restores(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = 'mount -t tmpfs -o size=8m tmpfs "$1" && shift && exec "$@"'
    first, second = told("fill_a_disk", folder, before=("unshare", "-rm", "sh", "-c", mount, "sh", str(folder))).splitlines()
    assert first.startswith("The checkpoint of step 2 (16,777,220 bytes) in ")
    assert "No space left on device" in first
    assert second == "[4]"


# Memory -----------------------------------------------------------------------------------------------------------------


def resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def save_many_times(run_dir: str) -> None:
    with CheckpointStore(Path(run_dir), POLICY) as store:
        numbers = state(0, mebibytes=32)
        for step in range(1, 61):
            store.save(step, numbers, temporary=True)
            store.wait()
            if step == 10:
                before = resident()
    print((resident() - before) / 2**20)


@pytest.mark.slow
def test_fifty_saves_leave_nothing_in_memory(tmp_path: Path) -> None:
    """Each that were kept would add 32 MiB, fifty 1,600; what an allocator keeps for later is a few tens."""
    assert float(told("save_many_times", tmp_path)) < 400


def restore_within(run_dir: str, mebibytes: str) -> None:
    _ = jnp.zeros(3) + 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with patch.object(store_module, "READ_BYTES", 2**20):
        found: Any = CheckpointStore(Path(run_dir)).restore_newest(abstract(float(mebibytes)), SilentReporter())
    assert int(found["step"]) == 5
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10)


@pytest.mark.slow
def test_restoring_takes_the_state_and_a_bounded_rest(tmp_path: Path) -> None:
    """One array at a time is on its way, of eight."""
    with CheckpointStore(tmp_path, POLICY) as store:
        store.save(5, state(5, mebibytes=512), temporary=True)
    assert float(told("restore_within", tmp_path, 512)) < 512 + 2 * 64 + 96


# Other numbers of processes ----------------------------------------------------------------------------------------------


def spread(step: int, processes: int) -> dict[str, Any]:
    """An array over all eight devices of a mesh, one over each half of them, one everywhere."""
    mesh = make_mesh(processes, 8 // processes)

    def place(seed: int, *spec: str | None) -> jax.Array:
        whole = np.random.default_rng([step, seed]).normal(size=(16, 24)).astype(np.float32)
        return jax.make_array_from_callback(whole.shape, NamedSharding(mesh, PartitionSpec(*spec)), lambda index: whole[index])

    return {"params": {"a": place(1, "rack", "expert"), "b": place(2, None, "expert")}, "step": place(3)}


def train_in_a_gang(run_dir: str, coordinator: str, processes: str, process: str, restore: str, step: str) -> None:
    distributed.start(coordinator, int(processes), int(process), barrier_seconds=60)
    with CheckpointStore(Path(run_dir), POLICY) as store:
        wanted = spread(int(restore), int(processes))
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), wanted)
        found = store.restore_newest(shapes, SilentReporter())
        if int(restore):
            assert found is not None
            for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
                for mine, other in zip(ours.addressable_shards, theirs.addressable_shards, strict=True):
                    np.testing.assert_array_equal(np.asarray(mine.data), np.asarray(other.data))
        store.save(int(step), spread(int(step), int(processes)), temporary=True)
        store.wait()
        print(store.steps(), store.metadata(int(step)).processes)
    distributed.stop()


def gang(run_dir: Path, processes: int, restore: int, step: int, port: int) -> None:
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(8 // processes)}
    arguments = [(run_dir, f"127.0.0.1:{port}", processes, process, restore, step) for process in range(processes)]
    members = [
        subprocess.Popen(command("train_in_a_gang", *each), cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for each in arguments
    ]
    try:
        said = [member.communicate(timeout=200)[0] for member in members]
    finally:
        for member in members:
            member.kill()
    assert [member.returncode for member in members] == [0] * processes
    assert [each.splitlines()[-1] for each in said] == [f"[{step}] {processes}"] * processes


@pytest.mark.slow
def test_a_state_saved_by_two_processes_restores_in_one_and_in_four(tmp_path: Path, free_port: Callable[[], int]) -> None:
    gang(tmp_path, 2, restore=0, step=1, port=free_port())
    one = spread(1, 1)
    digests = {}
    with CheckpointStore(tmp_path, POLICY) as store:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), one)
        found = store.restore_newest(shapes, SilentReporter())
        jax.tree.map(lambda ours, theirs: np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs)), found, one)
        digests["two"] = store.metadata(1).content_digest
        store.save(2, one, temporary=True)
        store.wait()
        digests["one"] = store.metadata(2).content_digest
    assert digests["one"] == digests["two"]
    gang(tmp_path, 4, restore=1, step=3, port=free_port())


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Ports that nobody listens on a moment ago."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return find
