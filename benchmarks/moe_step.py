"""How fast a model trains, a mixture of experts and a dense one, beside the same models in libraries that a user would pick instead.

    python -m benchmarks.moe_step --json moe_step.json

Ours and every peer train the same shapes on random tokens, in float32, with AdamW and clipped gradients, each in a process of its own
that uses all CPUs this one may use (`taskset -c 0,1` for two of them). Rounds alternate, and medians of all steps count: compare ratios,
since a machine that others use too swings. The roof is what the useful matrix products of a step would take at the speed of one large
product, measured in the same rounds.

Ours drops what an expert's capacity can't hold, and so does MaxText; other peers drop no token. How much ours drops is a row of its own.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import executor_peer, moe_step_levanter, moe_step_maxtext, moe_step_ours, moe_step_peak, moe_step_profile, moe_step_torch
from benchmarks.moe_step_shapes import SHAPES, Shape
from benchmarks.peers import PeerError, peer_environment, run_peer
from benchmarks.report import Machine, Row, installed_versions, parser, publish
from benchmarks.timing import Timing, median
from marin_assets.launch.local import ALLOCATOR


@dataclass(frozen=True)
class Peer:
    """A library that trains the same shapes.

    Attributes:
        environment, requirements: of `peer_environment`.
        script: that measures a shape there, with `arguments` of its own.
        dense_only: why it trains no mixture here; None where it does.
    """

    name: str
    environment: str
    requirements: tuple[str, ...]
    script: Path
    arguments: tuple[str, ...] = ()
    dense_only: str | None = None


def _torch_peer(name: str, library: str, dense_only: str | None = None) -> Peer:
    script = Path(moe_step_torch.__file__)
    return Peer(name, library, moe_step_torch.REQUIREMENTS[library], script, ("--library", library), dense_only)


PEERS = {
    "transformers": _torch_peer("Hugging Face transformers", "transformers"),
    "olmo-core": _torch_peer("OLMo-core", "ai2-olmo-core", "OLMo-core's experts are kernels in Triton, which don't run on a CPU"),
    "torchtitan": _torch_peer("torchtitan", "torchtitan"),
    # The environment of Marin's runner has it.
    "levanter": Peer("Levanter", "marin-core", executor_peer.REQUIREMENTS, Path(moe_step_levanter.__file__)),
    "maxtext": Peer("MaxText", "maxtext", moe_step_maxtext.REQUIREMENTS, Path(moe_step_maxtext.__file__)),
}

SHORTEST_TIMEOUT_SECONDS = 300
TIMEOUT_SECONDS_PER_STEP = 60
LARGEST_LOSS_ERROR = 1.0
"""How far, in nats, a first loss may be from ln V: a fresh model whose logits have a variance of 1 is half a nat off."""

GOAL_PERCENT = 10
"""Of a step's time that router, balancer and bookkeeping may take."""

OURS_ALONE = "a part of ours, which peers don't show"


@dataclass
class Measured:
    """Timed steps of one library at one shape, over all rounds, or the reason why there are none."""

    steps: list[Timing] = field(default_factory=list)
    parts: dict[str, list[Timing]] = field(default_factory=dict)
    dropped: list[float] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    reason: str | None = None

    def add(self, printed: Mapping[str, Any], shape: Shape) -> None:
        """Take in a round, if it was this shape that was trained.

        Raises:
            PeerError: it was another model: its size or its first loss is not what the shape says.
        """
        if printed["parameters"] != shape.parameters:
            raise PeerError(
                f"it trained {printed['parameters']:,} parameters where the shape has {shape.parameters:,}",
                advice="Look at what the peer's script builds.",
            )
        expected = math.log(shape.vocabulary)
        if abs(printed["first_loss"] - expected) > LARGEST_LOSS_ERROR:
            raise PeerError(
                f"its first loss is {printed['first_loss']:.3f} where random tokens cost {expected:.3f}",
                advice="Look at how the peer's script computes the loss.",
            )
        self.steps += _timings(printed)
        for name, part in printed.get("parts", {}).items():
            self.parts.setdefault(name, []).extend(_timings(part))
        self.dropped.append(printed.get("dropped", 0.0))
        self.versions = printed.get("versions", {})


@dataclass
class Peak:
    """FLOP/s of a large matrix product in one library, of each round."""

    per_second: list[float] = field(default_factory=list)
    per_cpu_second: list[float] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the rows."""
    options = _options(arguments)
    machine, progress = Machine.now(), Console(stderr=True)
    shapes = {name: SHAPES[name] for name in options.shapes}
    ours = {name: Measured() for name in shapes}
    peers = {key: {name: Measured() for name in shapes} for key in PEERS}
    for key, peer in PEERS.items():
        for name, shape in shapes.items():
            dense_only = peer.dense_only if shape.experts else None
            peers[key][name].reason = dense_only if key in options.peers else "not asked for (--peers)"
    peaks = {"JAX": Peak(), "NumPy": Peak()}
    with tempfile.TemporaryDirectory(prefix="benchmark-compiled-") as compiled:
        for number in range(options.rounds):
            measure_peak(peaks)
            for name, shape in shapes.items():
                progress.print(f"round {number + 1} of {options.rounds}, {name}: ours")
                ours[name].add(run_ours(shape, options.steps, compiled), shape)
                for key, peer in PEERS.items():
                    measured = peers[key][name]
                    progress.print(f"round {number + 1} of {options.rounds}, {name}: {measured.reason or peer.name}")
                    measure_peer(measured, peer, shape, options.steps)
    rows = peak_rows(peaks)
    for name, shape in shapes.items():
        rows += speed_rows(name, shape, ours[name], {peer.name: peers[key][name] for key, peer in PEERS.items()}, peaks)
        rows += routing_rows(name, ours[name]) if shape.experts else []
        progress.print(f"profile, {name}")
        rows += profile_rows(name, run_profile(shape))
    versions = installed_versions("marin-assets", "jax", "jaxlib", "flax", "optax", "numpy") | _versions(peers)
    publish("Training step", rows, machine=machine, versions=versions, json_file=options.json)


# Measuring ----------------------------------------------------------------------------------------------------------


def run_ours(shape: Shape, steps: int, compiled: str) -> Mapping[str, Any]:
    """One process of ours; `compiled` keeps its programs for the next round."""
    arguments = ["--shape", json.dumps(shape.as_dict()), "--steps", str(steps)]
    return _run_module(moe_step_ours.__name__, arguments, {"JAX_COMPILATION_CACHE_DIR": compiled, **ALLOCATOR})


def run_profile(shape: Shape) -> Mapping[str, Mapping[str, float]]:
    """Seconds a step by kind and part of the model, of one process of ours."""
    return _run_module(moe_step_profile.__name__, ["--shape", json.dumps(shape.as_dict())], ALLOCATOR)


def measure_peer(measured: Measured, peer: Peer, shape: Shape, steps: int) -> None:
    """One process of a peer; one that can't be run leaves its reason, and isn't tried again."""
    if measured.reason is not None:
        return
    try:
        python = peer_environment(peer.environment, peer.requirements)
        arguments = [*peer.arguments, "--shape", json.dumps(shape.as_dict()), "--steps", str(steps)]
        timeout = SHORTEST_TIMEOUT_SECONDS + steps * TIMEOUT_SECONDS_PER_STEP
        measured.add(run_peer(python, peer.script, arguments, timeout_seconds=timeout), shape)
    except PeerError as error:
        measured.reason = error.message


def measure_peak(peaks: Mapping[str, Peak]) -> None:
    """One process of large matrix products."""
    printed = _run_module(moe_step_peak.__name__, [], {})
    for library, peak in peaks.items():
        peak.per_second.append(printed["flops"] / printed[library]["seconds"])
        peak.per_cpu_second.append(printed["flops"] / printed[library]["cpu_seconds"])


def _run_module(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Mapping[str, Any]:
    """A module of ours as a process with one device; the JSON object that it prints."""
    command = [sys.executable, "-m", module, *arguments]
    inherited = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", **environment}
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, env=inherited, cwd=root)
    printed: Mapping[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return printed


def _timings(printed: Mapping[str, Any]) -> list[Timing]:
    return [Timing(*each) for each in zip(printed["seconds"], printed["cpu_seconds"], strict=True)]


def _versions(peers: Mapping[str, Mapping[str, Measured]]) -> dict[str, str]:
    """Of the environments of all peers that ran."""
    return {
        f"{PEERS[key].name}'s {name}": version
        for key, shapes in peers.items()
        for measured in shapes.values()
        for name, version in measured.versions.items()
    }


# Rows ---------------------------------------------------------------------------------------------------------------


def peak_rows(peaks: Mapping[str, Peak]) -> list[Row]:
    """The speed of a large matrix product; medians over rounds."""
    size = moe_step_peak.SIZE
    return [
        Row(
            f"matrix product of {size}×{size}, float32{name}",
            statistics.median(getattr(peaks["JAX"], key)) / 1e9,
            statistics.median(getattr(peaks["NumPy"], key)) / 1e9,
            "NumPy",
            unit,
            "higher",
        )
        for name, key, unit in (("", "per_second", "GFLOP/s"), (", CPU", "per_cpu_second", "GFLOP/CPU-s"))
    ]


def speed_rows(name: str, shape: Shape, ours: Measured, peers: Mapping[str, Measured], peaks: Mapping[str, Peak]) -> list[Row]:
    """Tokens a second and a CPU-second beside each peer and beside the roof, where the ratio is the share of the peak."""
    step = median(ours.steps)
    rows = []
    for measure, key, peak_key, unit in (
        (f"{name}: speed", "seconds", "per_second", "tokens/s"),
        (f"{name}: speed by CPU", "cpu_seconds", "per_cpu_second", "tokens/CPU-s"),
    ):
        speed = shape.tokens / getattr(step, key)
        for peer, measured in peers.items():
            theirs = None if measured.reason else shape.tokens / getattr(median(measured.steps), key)
            rows.append(Row(measure, speed, theirs, peer, unit, "higher", measured.reason))
        for library, peak in peaks.items():
            roof = shape.tokens * statistics.median(getattr(peak, peak_key)) / shape.matmul_flops
            rows.append(Row(measure, speed, roof, f"roof, by {library}'s product", unit, "higher"))
    return rows


def routing_rows(name: str, ours: Measured) -> list[Row]:
    """What routing takes of a step beside the goal, with the rows that are moved, and what is dropped."""
    step = median(ours.steps)
    shares = {part: median(timings).cpu_seconds / step.cpu_seconds * 100 for part, timings in ours.parts.items()}
    return [
        Row(f"{name}: router, balancer and bookkeeping, CPU", shares["routing"], GOAL_PERCENT, "the goal", "% of the step"),
        Row(f"{name}: the same and the rows moved, CPU", shares["routing and rows"], None, "", "% of the step", reason=OURS_ALONE),
        Row(f"{name}: assignments dropped", 100 * statistics.median(ours.dropped), None, "", "%", reason="peers drop none, or don't say"),
    ]


def profile_rows(name: str, profile: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Where our step's time goes on one CPU, the most first; what takes less than a hundredth is put together."""
    total = sum(seconds for parts in profile.values() for seconds in parts.values())
    shares = {f"{part}, {kind}": 100 * seconds / total for kind, parts in profile.items() for part, seconds in parts.items()}
    shown = {part: share for part, share in sorted(shares.items(), key=lambda each: -each[1]) if share >= 1}
    if small := sum(share for share in shares.values() if share < 1):
        shown["all else"] = small
    return [Row(f"{name}: {part}", share, None, "", "% of our step", reason=OURS_ALONE) for part, share in shown.items()]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--rounds", type=int, default=3, metavar="N", help="how often ours and the peers take turns (default 3)")
    made.add_argument("--steps", type=int, default=5, metavar="N", help="timed steps of a round, behind two that aren't (default 5)")
    made.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME", help=f"of {', '.join(SHAPES)}")
    made.add_argument(
        "--peers",
        nargs="*",
        choices=PEERS,
        default=list(PEERS),
        metavar="NAME",
        help=f"of {', '.join(PEERS)}; each takes minutes and gigabytes to install; without a name none",
    )
    return made.parse_args(arguments)


if __name__ == "__main__":
    main()
