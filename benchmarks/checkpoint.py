"""What a checkpoint costs a training: how long a step waits for it, and what saving and restoring take beside the raw libraries.

    python -m benchmarks.checkpoint --gigabytes 1 --json checkpoint.json

Ours saves beside the steps. The peers are Orbax's blocking save of the same state, as it comes and with our options, and TensorStore's
bare write and read of the same arrays, all to the same disk in the same rounds, of which medians count. What is read was just written,
so it comes from memory: what is compared is the work, not the disk. A step here does nothing but change the state it is given, whose
memory it takes over.

Where steps and writing share the processors, as on a CPU, steps are slower until a checkpoint is committed: that time is shown too,
beside Orbax's own asynchronous save. On an accelerator they don't share them.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import tensorstore as ts
from orbax.checkpoint import v1 as ocp
from rich.console import Console

from benchmarks.report import Machine, Row, installed_versions, parser, publish
from benchmarks.timing import timed
from marin_assets.launch.local import ALLOCATOR
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.checkpoint.store import CHUNK_BYTES, CheckpointStore, flatten

ARRAYS = 16
GOAL_PERCENT = 5.0
"""Of a blocking save: the longest that a step may wait for one of ours."""

BLOCKING = {
    "Orbax: save": "Orbax, blocking",
    "Orbax, our options: save": "Orbax, blocking, our options",
    "TensorStore: write": "TensorStore, bare write",
}

State = dict[str, dict[str, jax.Array]]
Figures = dict[str, list[float]]
"""Measure → what each round found."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the rows."""
    options = _options(arguments)
    machine, progress = Machine.now(), Console(stderr=True)
    trainer, found = Trainer(options.gigabytes), defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory(prefix="benchmark-checkpoint-", dir=options.folder) as folder:
        for number in range(options.rounds + 1):
            progress.print(f"round {number} of {options.rounds}" if number else "warming up")
            figures = measure(trainer, Path(folder) / str(number), options.steps)
            shutil.rmtree(Path(folder) / str(number))
            if number:
                for name, value in figures.items():
                    found[name].append(value)
    versions = installed_versions("jax", "orbax-checkpoint", "tensorstore")
    publish(f"Checkpoints of {trainer.bytes / 1e9:.3g} GB", rows(found), machine=machine, versions=versions, json_file=options.json)


class Trainer:
    """A state, and a step that changes every number of it in its own memory."""

    def __init__(self, gigabytes: float) -> None:
        self.bytes = 0
        keys = jax.random.split(jax.random.key(0), ARRAYS)
        shape = (max(int(gigabytes * 1e9 / 4 / ARRAYS / 1024), 1), 1024)
        self.state: State = {"params": {f"w{i}": jax.random.normal(key, shape) for i, key in enumerate(keys)}}
        self.bytes = sum(array.nbytes for array in flatten(self.state).values())
        self._step = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf * 0.999 + 0.001, state), donate_argnums=0)

    def step(self) -> float:
        """Make a step; what it took, in seconds."""
        began = time.perf_counter()
        self.state = jax.block_until_ready(self._step(self.state))
        return time.perf_counter() - began

    def steps(self, count: int) -> float:
        """The median of some steps, in seconds."""
        return statistics.median(self.step() for _ in range(count))

    def abstract(self) -> State:
        """Where a restored state is to lie."""
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), self.state)
        return cast(State, shapes)

    def delay(self, usual: float, saving: Callable[[], Any], running: Callable[[Any], bool]) -> tuple[float, float, float]:
        """Begin to save, and train on until it is done.

        Returns:
            Seconds that the call took, seconds that the step behind it took longer than usual, and seconds that all steps until the
            end did.
        """
        response, call = timed(saving)
        first = self.step() - usual
        extra = first
        while running(response):
            extra += self.step() - usual
        return call.seconds, max(first, 0.0), max(extra, 0.0)


def measure(trainer: Trainer, folder: Path, steps: int) -> dict[str, float]:
    """One round: everything once, in seconds."""
    folder.mkdir()
    usual = trainer.steps(steps)
    found = {"a step": usual}
    found |= _ours(trainer, folder / "ours", usual)
    with ocp.Context():
        call, first, extra = trainer.delay(
            usual, lambda: ocp.save_async(folder / "async", trainer.state), lambda response: not response._thread_runner.done()
        )
    found |= {"Orbax async: call": call, "Orbax async: first step": first, "Orbax async: steps": extra}
    for name, context in (("Orbax", ocp.Context()), ("Orbax, our options", _our_options())):
        with context:
            found[f"{name}: save"] = timed(partial(ocp.save, folder / name, trainer.state))[1].seconds
            found[f"{name}: restore"] = timed(partial(_load, folder / name, trainer.abstract()))[1].seconds
    return found | _tensorstore(trainer, folder / "tensorstore")


def _ours(trainer: Trainer, folder: Path, usual: float) -> dict[str, float]:
    with CheckpointStore(folder, CheckpointPolicy(permanent_every_steps=1)) as store:
        for step in (1, 2):  # the first makes room for the copy, the second compiles the program that fills it
            store.save(step, trainer.state, temporary=True)
            store.wait()

        def save() -> Any:
            store.save(3, trainer.state, temporary=True)
            return store._saving

        began = time.perf_counter()
        call, first, extra = trainer.delay(usual, save, lambda saving: saving._thread.is_alive())
        store.wait()
        committed = time.perf_counter() - began
        restored = timed(lambda: jax.block_until_ready(store.restore(3, trainer.abstract())))[1].seconds
    return {"ours: call": call, "ours: first step": first, "ours: steps": extra, "ours: committed": committed, "ours: restore": restored}


def _load(path: Path, abstract: State) -> Any:
    return jax.block_until_ready(ocp.load(path, abstract))


def _our_options() -> ocp.Context:
    context = ocp.Context()
    context.array.saving.use_compression = False
    context.array.saving.storage_options.chunk_byte_size = CHUNK_BYTES
    return context


def _tensorstore(trainer: Trainer, folder: Path) -> dict[str, float]:
    """Bare arrays, uncompressed, each in one piece."""
    host = {name: np.asarray(array) for name, array in flatten(trainer.state).items()}

    def spec(name: str) -> dict[str, Any]:
        return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/{name}"}}

    def write() -> None:
        writes = []
        for name, array in host.items():
            grid = {"name": "regular", "configuration": {"chunk_shape": array.shape}}
            metadata = {"shape": array.shape, "data_type": array.dtype.name, "chunk_grid": grid, "codecs": [{"name": "bytes"}]}
            opened = ts.open(spec(name) | {"metadata": metadata}, create=True).result()
            writes.append(opened.write(array, can_reference_source_data_indefinitely=True))
        for each in writes:
            each.result()

    def read() -> list[Any]:
        reads = [ts.open(spec(name)).result().read() for name in host]
        return [each.result() for each in reads]

    return {"TensorStore: write": timed(write)[1].seconds, "TensorStore: read": timed(read)[1].seconds}


# Rows ---------------------------------------------------------------------------------------------------------------


def rows(found: Figures) -> list[Row]:
    """Ours beside the peers; the medians over the rounds."""
    middle = {name: statistics.median(values) for name, values in found.items()}
    call = middle["ours: call"]
    shares = {
        name: statistics.median(100 * ours / theirs for ours, theirs in zip(found["ours: call"], found[f"{name}: save"], strict=True))
        for name in ("Orbax", "Orbax, our options")
    }
    return [
        *(Row("a save keeps the training waiting", call, middle[peer], name, "s") for peer, name in BLOCKING.items()),
        Row("a save keeps the training waiting", call, middle["Orbax async: call"], "Orbax, asynchronous", "s"),
        Row("the same, share of Orbax's blocking save", shares["Orbax"], GOAL_PERCENT, "goal", "%"),
        Row("the same, share of that with our options", shares["Orbax, our options"], GOAL_PERCENT, "goal", "%"),
        Row("the next step is slower by", middle["ours: first step"], middle["Orbax async: first step"], "Orbax, asynchronous", "s"),
        Row("all steps until the commit, slower by", middle["ours: steps"], middle["Orbax async: steps"], "Orbax, asynchronous", "s"),
        Row("from the call to the commit, steps going on", middle["ours: committed"], middle["Orbax: save"], "Orbax, blocking", "s"),
        Row("restore", middle["ours: restore"], middle["Orbax: restore"], "Orbax", "s"),
        Row("restore", middle["ours: restore"], middle["Orbax, our options: restore"], "Orbax, our options", "s"),
        Row("restore", middle["ours: restore"], middle["TensorStore: read"], "TensorStore, bare read", "s"),
    ]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--gigabytes", type=float, default=1.0, metavar="G", help="size of the state (default 1)")
    made.add_argument("--rounds", type=int, default=5, metavar="N", help="how often everything is measured (default 5)")
    made.add_argument("--steps", type=int, default=10, metavar="N", help="steps that say what one takes without a save (default 10)")
    made.add_argument("--folder", type=Path, default=None, metavar="DIR", help="where to save to (default: the folder for temporary files)")
    return made.parse_args(arguments)


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):  # read when a process starts; jobs are given it
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.checkpoint", *sys.argv[1:]], os.environ | ALLOCATOR)  # noqa: S606
    main()
