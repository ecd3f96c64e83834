"""A training that several processes share: each is `python -m tests.train.gang_run RUN_DIR --mesh 2x4 --process 0 --processes 2 …`.

Tests start them with `Gang`, and may have one killed in the middle of a step or asked to stop.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from marin_core import distributed
from marin_core.errors import ExitCode, MarinError
from marin_core.model.config import MoEConfig
from marin_core.model.presets import moe_tiny
from marin_core.report import SilentReporter
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import MeshConfig, TrackerConfig, TrainConfig
from marin_core.train.loop import train
from marin_core.train.optimizers.config import AdamW
from marin_core.train.schedules import Wsd
from tests.train.tiny_run import batches

PROJECT = Path(__file__).resolve().parents[2]
STEPS = 4
FINGERPRINT = "g1"
WAIT_SECONDS = 600


def gang_config(mesh: tuple[int, int] | None, **changes: Any) -> TrainConfig:
    """Small matrices, which compile quickly, and room for every assignment, so that no drop depends on where a token lies."""
    moe = MoEConfig(experts=8, experts_per_token=2, latent_dim=16, expert_width=16, capacity_factor=4.0)
    features: dict[str, Any] = {"d_model": 32, "head_dim": 8, "layers": 1, "window": 16, "gated_norm_rank": 0, "short_conv_kernel": 2}
    values: dict[str, Any] = {
        "model": moe_tiny(64, moe=moe, **features),
        "optimizer": AdamW(schedule=Wsd(warmup_steps=2)),
        "num_steps": STEPS,
        "global_batch_size": 8,
        "sequence_length": 64,
        "checkpoints": CheckpointPolicy(permanent_every_steps=2, temporary_every_steps=1),
        "mesh": None if mesh is None else MeshConfig(racks=mesh[0], devices_per_rack=mesh[1]),
        "log_every_steps": 2,
        "tracker": TrackerConfig(mode="disabled"),
    }
    return TrainConfig(**(values | changes))


def quick_environment(devices: int, compiled: Path) -> dict[str, str]:
    """Variables of a process with so many CPU devices, which optimises little and shares what it compiled.

    Every process that is compared with another must have the same: what XLA optimises changes last bits.
    """
    return {
        "JAX_NUM_CPU_DEVICES": str(devices),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


class Gang:
    """The processes of one training; a context manager, at whose end none is left.

    Args:
        mesh: racks and devices of a rack; None = one device, no mesh.
        compiled: folder that processes share compiled programs in.
        kill: (process, step): that process kills itself with SIGKILL in the middle of that step.
        stop: (process, step): the same with SIGTERM.
    """

    def __init__(
        self,
        run_dir: Path,
        processes: int,
        mesh: tuple[int, int] | None,
        compiled: Path,
        coordinator: str,
        *,
        kill: tuple[int, int] | None = None,
        stop: tuple[int, int] | None = None,
    ) -> None:
        devices = 1 if mesh is None else mesh[0] * mesh[1] // processes
        shape = "none" if mesh is None else f"{mesh[0]}x{mesh[1]}"
        shared = [str(run_dir), "--mesh", shape, "--processes", str(processes), "--coordinator", coordinator]
        self._children = []
        for process in range(processes):
            own = ["--process", str(process)]
            for name, chosen in (("--kill-in", kill), ("--stop-in", stop)):
                if chosen is not None and chosen[0] == process:
                    own += [name, str(chosen[1])]
            command = [sys.executable, "-m", "tests.train.gang_run", *shared, *own]
            environment = os.environ | quick_environment(devices, compiled)
            child = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self._children.append(child)
        self.logs: list[str] = []

    def end(self) -> list[int]:
        """Exit codes, by process, once all have ended."""
        self.logs = [child.communicate(timeout=WAIT_SECONDS)[0] for child in self._children]
        return [child.returncode for child in self._children]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for child in self._children:
            child.kill()
            child.wait()


class Signaller(SilentReporter):
    """Sends this process a signal in the middle of a step of its choice; asks to stop once SIGTERM has come."""

    def __init__(self, signals: dict[int, signal.Signals]) -> None:
        self._signals = signals
        self._step = 0
        self._stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda number, frame: self._stop.set())

    def log(self, message: str) -> None:
        print(message, flush=True)
        if "from step" in message:
            self._step = int(message.split("from step ")[1].split()[0])

    def stop_requested(self) -> bool:
        """The loop asks once a step, when the step has been begun."""
        if self._step in self._signals:
            os.kill(os.getpid(), self._signals[self._step])
        self._step += 1
        return self._stop.is_set()


def main() -> int:
    options = _options()
    distributed.start(options.coordinator, options.processes, options.process, startup_seconds=120, heartbeat_seconds=30)
    mesh = None if options.mesh == "none" else tuple(map(int, options.mesh.split("x")))
    signals = {options.kill_in: signal.SIGKILL, options.stop_in: signal.SIGTERM}
    reporter = Signaller({step: number for step, number in signals.items() if step is not None})
    try:
        train(gang_config(mesh), batches, options.run_dir, reporter, fingerprint=FINGERPRINT, run_name="gang")  # type: ignore[arg-type]
        code = int(ExitCode.DONE)
    except Exception as error:
        traceback.print_exc()
        own = int(error.exit_code) if isinstance(error, MarinError) else int(ExitCode.BUG)
        code = int(ExitCode.TRY_AGAIN) if distributed.peer_lost(error) else own
    if code in (ExitCode.DONE, ExitCode.PREEMPTED):
        distributed.stop()
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # at a usual end JAX would wait for the peers


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--mesh", required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--kill-in", type=int)
    parser.add_argument("--stop-in", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
