"""Where our training step's time goes, by part of the model: a process of its own for `benchmarks.moe_step`, which prints its shares.

XLA records how long each of its operations took, and a compiled operation says which scope of the model it comes from. The process keeps
to one CPU, so that operations follow each other and their times add up.

Prints one JSON object: seconds a step of each part, products of matrices and the rest apart.
"""

import argparse
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

PARTS = ("experts", "routing", "dispatch", "attention", "feed_forward", "loss", "optimizer", "norms")
"""Scopes of the model and the step, the inner ones first."""
OTHER = "other"
"""Embedding, gradients of layers put together, and what the compiler says of no scope."""


def part_of(scopes: str) -> str:
    """The part of the model that an operation of these scopes (`jit(train_step)/jvp(attention)/…`) belongs to."""
    names = set(re.findall(r"\w+", scopes))
    return next((part for part in PARTS if part in names), OTHER)


def is_product(name: str) -> bool:
    """Whether an operation of this name multiplies matrices; what a library does is named after the library."""
    return name.startswith(("dot", "onednn"))


def parts_of_program(program: str) -> dict[str, tuple[str, bool]]:
    """Part and whether it is a product, of each operation in the text of a compiled program."""
    named = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*?op_name="([^"]*)"', re.MULTILINE)
    return {name: (part_of(scopes), is_product(name)) for name, scopes in named.findall(program)}


def operations(folder: Path) -> Iterator[tuple[str, float]]:
    """Name and seconds of every operation that a profile in this folder saw running."""
    import jax

    found = next(folder.rglob("*.xplane.pb"))
    for plane in jax.profiler.ProfileData.from_file(str(found)).planes:
        for line in plane.lines:
            if "XLA" in line.name:
                yield from ((event.name, event.duration_ns / 1e9) for event in line.events)


def measure(shape: dict[str, int], steps: int, warmup: int) -> dict[str, object]:
    """Train, and add up what was seen."""
    import jax

    from benchmarks.moe_step_ours import random_batch, train_config
    from benchmarks.moe_step_shapes import Shape
    from marin_core.train.step import compile_train_step, initial_state

    sizes = Shape(**shape)
    config = train_config(sizes)
    state, train_step = initial_state(config), compile_train_step(config, None, config.batches.stages[0])
    known = parts_of_program(train_step.as_text())  # type: ignore[attr-defined]
    for step in range(warmup):
        state, _ = jax.block_until_ready(train_step(state, random_batch(sizes, step)))
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        with jax.profiler.trace(folder):
            for step in range(warmup, warmup + steps):
                state, _ = jax.block_until_ready(train_step(state, random_batch(sizes, step)))
        products: dict[str, float] = dict.fromkeys((*PARTS, OTHER), 0.0)
        rest = dict(products)
        for name, seconds in operations(Path(folder)):
            if name in known:
                part, product = known[name]
                (products if product else rest)[part] += seconds / steps
    return {"products": products, "rest": rest}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=json.loads, required=True, help="fields of `benchmarks.moe_step_shapes.Shape` as JSON")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="recorded steps (default 3)")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="steps before them (default 2)")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before XLA counts its threads
    print(json.dumps(measure(options.shape, options.steps, options.warmup)))


if __name__ == "__main__":
    main()
