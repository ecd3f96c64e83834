"""Marin's own runner, measured: the peer half of `benchmarks.executor`. Runs inside an environment that has REQUIREMENTS.

    PYTHON -I benchmarks/executor_peer.py --folder /tmp/peer

prints one JSON object as its last line. Marin has two ways to say the same graph, and both are measured: the lazy handles that experiments
are written in (`ArtifactStep`, which lower to steps), and the runner's own steps (`StepSpec`). A graph is built anew for every run, as
a second process would, and building it counts.
"""

import argparse
import json
import os
import platform
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

REQUIREMENTS = (
    "marin-core==0.2.227.dev40316220070",
    # Marin pins none of these; without a fixed point pip's resolver tries their whole history for over ten minutes.
    "datasets==4.8.5",
    "fsspec==2026.2.0",
    "gcsfs==2026.2.0",
    "huggingface-hub==1.33.0",
    "s3fs==2026.2.0",
    "transformers==5.12.1",
)
"""What the environment of this script needs. `marin-dupekit` is needed by Marin's deduplication alone, not by its runner."""


@dataclass(frozen=True)
class Timing:
    """What a run of a graph took: wall-clock and this process's CPU time, which a busy machine distorts less."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Depth:
    """How long a chain may be with Python's default recursion limit."""

    deepest_working: int
    first_failing_tried: int | None
    exception: str | None


@dataclass(frozen=True)
class Figures:
    """One API's figures.

    A served run asks for what exists: every step of a fan by name, or the end of a chain, of which Marin then looks at nothing else.
    """

    api: str
    chained_step_cold: Timing
    independent_step_cold: Timing
    step_served: Timing
    whole_chain_served: Timing
    chain_planned: Depth
    chain_served: Depth


def write_value(output_path: str, value: int) -> None:
    """The whole work of a step: one tiny JSON file."""
    (Path(output_path) / "value.json").write_text(json.dumps({"value": value}))


class Api(ABC):
    """One of Marin's two ways to build a graph and run it."""

    name: str

    @abstractmethod
    def step(self, name: str, value: int, deps: Sequence[Any]) -> Any:
        """A step that writes `value`, after `deps`."""

    @abstractmethod
    def run(self, steps: Sequence[Any]) -> None:
        """Build the steps and what they depend on."""

    @abstractmethod
    def plan(self, step: Any) -> None:
        """Walk and order the step's graph without running it."""

    @abstractmethod
    def output_path(self, step: Any) -> str:
        """Where the step writes."""


class ArtifactSteps(Api):
    """Lazy handles: what an experiment file contains."""

    name = "ArtifactStep"

    def step(self, name: str, value: int, deps: Sequence[Any]) -> Any:
        from marin.execution.lazy import OUT, apply  # type: ignore[import-not-found]

        def write(output_path: str, value: int, after: list[str]) -> None:
            write_value(output_path, value)

        return apply(name, write, version="2026.11.29", output_path=OUT, value=value, after=list(deps))

    def run(self, steps: Sequence[Any]) -> None:
        from marin.execution.lazy import run

        run(*steps)

    def plan(self, step: Any) -> None:
        from marin.execution.lazy import lower
        from marin.execution.step_runner import StepRunner  # type: ignore[import-not-found]

        StepRunner().run([lower(step)], dry_run=True)

    def output_path(self, step: Any) -> str:
        return str(step.path())


class StepSpecs(Api):
    """The runner's own steps."""

    name = "StepSpec"

    def step(self, name: str, value: int, deps: Sequence[Any]) -> Any:
        from marin.execution.step_spec import StepSpec  # type: ignore[import-not-found]

        return StepSpec(name=name, hash_attrs={"value": value}, deps=list(deps), fn=partial(write_value, value=value))

    def run(self, steps: Sequence[Any]) -> None:
        from marin.execution.step_runner import StepRunner

        StepRunner().run(steps)

    def plan(self, step: Any) -> None:
        from marin.execution.step_runner import StepRunner

        StepRunner().run([step], dry_run=True)

    def output_path(self, step: Any) -> str:
        return str(step.output_path)


def measure(api: Api, *, chain_steps: int, fan_steps: int, depths: Sequence[int]) -> Figures:
    """Measure one API in the prefix that Marin was told, where nothing of that API has been built yet."""
    chain_cold = timed(lambda: api.run([chain(api, chain_steps)]))
    chain_served = timed(lambda: api.run([chain(api, chain_steps)]))
    fan_cold = timed(lambda: api.run(fan(api, fan_steps)))
    fan_served = timed(lambda: api.run(fan(api, fan_steps)))
    return Figures(
        api=api.name,
        chained_step_cold=per_step(chain_cold, chain_steps),
        independent_step_cold=per_step(fan_cold, fan_steps),
        step_served=per_step(fan_served, fan_steps),
        whole_chain_served=chain_served,
        chain_planned=deepest_chain(partial(plan_chain, api), depths),
        chain_served=deepest_chain(partial(serve_chain, api), depths),
    )


def chain(api: Api, length: int, name: str = "chain") -> Any:
    """The last of `length` steps, each of which depends on the one before."""
    last: Any = None
    for i in range(length):
        last = api.step(f"{api.name}/{name}/{i}", i, [] if last is None else [last])
    return last


def fan(api: Api, width: int) -> list[Any]:
    """Steps that depend on nothing."""
    return [api.step(f"{api.name}/fan/{i}", i, []) for i in range(width)]


def plan_chain(api: Api, depth: int) -> None:
    """Walk and order a chain as a real run does, without the second that each chained step takes."""
    api.plan(chain(api, depth, name=f"planned{depth}"))


def serve_chain(api: Api, depth: int) -> None:
    """Ask for the end of a chain that exists: all that the runner looks at is the end's status, so that alone is written."""
    from marin.execution.step_status import STATUS_SUCCESS, StatusFile  # type: ignore[import-not-found]

    output_path = api.output_path(chain(api, depth, name=f"served{depth}"))
    StatusFile(output_path, worker_id="benchmark").write_status(STATUS_SUCCESS)
    api.run([chain(api, depth, name=f"served{depth}")])


def deepest_chain(attempt: Callable[[int], None], depths: Sequence[int]) -> Depth:
    """Try the depths in order, then search between the last that works and the first that fails."""
    working, failing, exception = 0, None, None
    for depth in sorted(depths):
        exception = failure(attempt, depth)
        if exception is not None:
            failing = depth
            break
        working = depth
    lowest_failing = failing
    while lowest_failing is not None and lowest_failing - working > 1:
        middle = (working + lowest_failing) // 2
        if failure(attempt, middle) is None:
            working = middle
        else:
            lowest_failing = middle
    return Depth(working, failing, exception)


def failure(attempt: Callable[[int], None], depth: int) -> str | None:
    """The type of what an attempt at this depth raises; None if it works."""
    try:
        attempt(depth)
    except Exception as error:  # whatever it is, it is what is reported
        return type(error).__name__
    return None


def timed(work: Callable[[], None]) -> Timing:
    """Run the work once."""
    seconds, cpu_seconds = time.perf_counter(), time.process_time()
    work()
    return Timing(time.perf_counter() - seconds, time.process_time() - cpu_seconds)


def per_step(whole: Timing, steps: int) -> Timing:
    """The share of one step."""
    return Timing(whole.seconds / steps, whole.cpu_seconds / steps)


def import_marin() -> None:
    """What a file with an experiment imports before its first line of its own."""
    import marin.execution.lazy  # type: ignore[import-not-found]  # noqa: F401


def stay_off_the_network() -> None:
    """Answer Marin's question for its cloud region, which asks a metadata server and, off that cloud, would measure a time-out."""
    from rigging.filesystem import cluster_config  # type: ignore[import-not-found]

    cluster_config._region_from_metadata = lambda: None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder for what the steps write")
    parser.add_argument("--chain", type=int, default=6, metavar="N", help="chained steps to run, about a second each (default 6)")
    parser.add_argument(
        "--fan",
        type=int,
        default=256,
        metavar="N",
        help="independent steps to run; the more, the less its 1-second poll weighs (default 256)",
    )
    parser.add_argument(
        "--depths",
        type=int,
        nargs="*",
        default=[100, 200, 500, 1000, 2000, 5000],
        metavar="N",
        help="lengths of chains to plan and to serve",
    )
    options = parser.parse_args()
    folder = options.folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        parser.error(f"{folder} is not empty: steps built before would be served, and measured as if they had been built")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MARIN_PREFIX"] = str(folder)
    os.chdir(folder)  # Marin's provenance runs `git stash create` where it stands, and would leave objects in our checkout

    imported = timed(import_marin)
    modules = len(sys.modules)
    stay_off_the_network()
    figures = [
        measure(api, chain_steps=options.chain, fan_steps=options.fan, depths=options.depths) for api in (ArtifactSteps(), StepSpecs())
    ]
    printed = {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("marin-core", "fsspec", "jax", "pydantic")}},
        "steps": {"chain": options.chain, "fan": options.fan},
        "recursion_limit": sys.getrecursionlimit(),
        "import": {**asdict(imported), "modules": modules},
        "apis": [asdict(each) for each in figures],
    }
    print(json.dumps(printed))


if __name__ == "__main__":
    main()
