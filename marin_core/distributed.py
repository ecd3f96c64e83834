"""Several processes that train as one: how they start, what they agree on, and what it looks like when one of them is lost.

They agree through JAX's coordination service, a key-value store with barriers in process 0. It works on every backend, needs no device,
and every wait has an end; collectives on devices are cheaper for arrays, but hang for as long as a peer does. Functions that all
processes must call say so; with one process they answer at once, whether or not `start` was called.
"""

import json
import re
import socket
from itertools import count
from typing import Any

import jax
from jax._src.distributed import global_state  # the service's client has no public name; Orbax reaches it like this too
from jax.errors import JaxRuntimeError

from marin_core.errors import InfrastructureError

STARTUP_SECONDS = 900.0
"""For all processes to appear: image pulls of a large gang are skewed, and JAX's own 300 s were too short (spec/kubernetes.md §2.5)."""

HEARTBEAT_SECONDS = 60.0
"""Silence after which the service holds a process for dead and ends all others."""

BARRIER_SECONDS = 900.0
"""For all processes to come to one point; longer than the slowest checkpoint (spec/training.md §9)."""

_LOST = ("Gloo", "NCCL", "CoordinationService", "coordination service", "Connection reset by peer", "Connection closed by peer")
"""In what JAX says when a collective or the coordination service fails for want of another process."""

_round = count()
_barrier_seconds = BARRIER_SECONDS
_written: str | None = None


class PeerLostError(InfrastructureError):
    """Another process of the gang is gone or doesn't answer. Why, is for that process to say."""


def start(
    coordinator: str,
    processes: int,
    process: int,
    *,
    bind: str | None = None,
    startup_seconds: float = STARTUP_SECONDS,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    barrier_seconds: float = BARRIER_SECONDS,
) -> None:
    """Join the gang; before anything asks JAX for a device. All processes call it, and it returns when all have.

    Everything is explicit: JAX's own detection makes several clusters of one JobSet (spec/kubernetes.md §2.5). The devices that a
    process has on a CPU are set by JAX_NUM_CPU_DEVICES.

    Args:
        coordinator: `host:port` where process 0 serves; on a loopback address nothing else can reach it.
        processes: how many there are; one alone needs no service, and nothing is started.
        process: which this is, from 0.
        bind: `host:port` at which process 0 serves, where the coordinator's name belongs to no interface of its machine. None = the
            coordinator's own address on a loopback, else every interface.
        startup_seconds: to wait for the others. If not all come, JAX aborts those that did (SIGABRT); no exception can be caught.
        heartbeat_seconds: silence after which a process counts as dead; JAX aborts all others then, whatever they wait in.
        barrier_seconds: to wait for the others at `anywhere`, `from_lead`, `from_each` and `stop`.

    Raises:
        InfrastructureError: process 0 can't serve at the coordinator's address.
    """
    global _barrier_seconds
    _barrier_seconds = barrier_seconds
    if processes == 1:
        return
    # JAX's preemption service takes SIGTERM away from Python's handler, so that a job would never learn that it is to stop.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if bind is None and coordinator.rpartition(":")[0] in ("127.0.0.1", "localhost"):
        bind = coordinator  # JAX would listen on every interface
    if process == 0:
        _require_port(coordinator, bind or f":{coordinator.rpartition(':')[2]}")
    jax.distributed.initialize(
        coordinator,
        processes,
        process,
        cluster_detection_method="deactivate",
        initialization_timeout=round(startup_seconds),
        heartbeat_timeout_seconds=round(heartbeat_seconds),
        shutdown_timeout_seconds=round(barrier_seconds),
        coordinator_bind_address=bind,
    )


def stop() -> None:
    """Leave the gang together. All processes call it; one that merely exits takes the others down with it.

    Raises:
        PeerLostError: not all came in time.
    """
    if not is_running():
        return
    try:
        jax.distributed.shutdown()
    except JaxRuntimeError as error:
        raise _lost("the end", _barrier_seconds, error) from error


def is_running() -> bool:
    """Whether this process is in a gang that it hasn't left."""
    return jax.distributed.is_initialized()


def process_index() -> int:
    """Which process this is, from 0; asks no device."""
    return int(global_state.process_id)


def process_count() -> int:
    """How many processes there are; asks no device."""
    return int(global_state.num_processes)


def is_lead() -> bool:
    """Whether this is process 0, which alone speaks for all."""
    return process_index() == 0


def barrier(name: str, seconds: float) -> None:
    """Wait until all processes have come here; all call it. A name may be used again.

    Raises:
        PeerLostError: not all came in time; names the barrier and, where JAX knows them, the missing processes.
    """
    if process_count() == 1:
        return
    try:
        _client().wait_at_barrier(f"marin/{name}", round(seconds * 1000))
    except JaxRuntimeError as error:
        raise _lost(name, seconds, error) from error


def anywhere(flag: bool) -> bool:
    """True in all processes if it is true in any; all call it. Two round trips to process 0: made for once a step."""
    return bool(_exchange("anywhere", "1" if flag else None)) if process_count() > 1 else flag


def from_lead[V: (int, float, bool, str, str | None)](value: V) -> V:
    """Process 0's value, in all processes; all call it, and what the others pass says nothing. Exact: floats keep every bit."""
    if process_count() == 1:
        return value
    answer: V = json.loads(_exchange("from_lead", json.dumps(value) if is_lead() else None)[0])
    return answer


def from_each[V: (int, float, bool, str, str | None)](value: V) -> list[V]:
    """Every process's value, in their order, in all processes; all call it."""
    if process_count() == 1:
        return [value]
    answers = _exchange("from_each", json.dumps(value))
    return [json.loads(answers[process]) for process in range(process_count())]


def peer_lost(error: BaseException) -> bool:
    """Whether an error, or what caused it, says no more than that another process is gone or doesn't answer."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, PeerLostError):
            return True
        if isinstance(seen, JaxRuntimeError) and any(word in str(seen) for word in _LOST):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _require_port(coordinator: str, bind: str) -> None:
    """Refuse a port that is taken, on which JAX 0.12 crashes (segmentation fault). Who reserves it for us shares it (SO_REUSEPORT)."""
    host, _, port = bind.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise InfrastructureError(
                f"process 0 can't serve the others at {coordinator}: {error}",
                advice="Free the port or choose another one, and try again.",
            ) from error


def _exchange(kind: str, value: str | None) -> dict[int, str]:
    """What the processes have to say to each other at this point: process → value, of those that have one.

    A key is deleted a round later, when everybody must have read it, so that a training of months doesn't fill process 0's memory.

    Raises:
        PeerLostError: not all came in time.
    """
    global _written
    client = _client()
    folder = f"marin/{kind}/{next(_round)}/"
    key = f"{folder}{process_index()}"
    try:
        if value is not None:
            client.key_value_set(key, value)
        barrier(kind, _barrier_seconds)
        if _written is not None:
            client.key_value_delete(_written)
        _written = key if value is not None else None
        return {int(name.rpartition("/")[2]): said for name, said in client.key_value_dir_get(folder)}
    except JaxRuntimeError as error:
        raise _lost(kind, _barrier_seconds, error) from error


def _client() -> Any:
    if global_state.client is None:
        raise RuntimeError("this process has left its gang")
    return global_state.client


def _lost(where: str, seconds: float, error: JaxRuntimeError) -> PeerLostError:
    missing = re.search(r"timed out task names:\s*((?:\d+\s+)+)", str(error))
    whom = f"process {', '.join(missing[1].split())}" if missing else "the other processes"
    why = f"waited {seconds:.0f} s" if "DEADLINE_EXCEEDED" in str(error) else f"can't wait: {_first_line(error)}"
    return PeerLostError(
        f"process {process_index()} of {process_count()} is at {where!r} without {whom}; {why}",
        advice="Look at the missing process's part of the log, and try again.",
    )


def _first_line(error: JaxRuntimeError) -> str:
    return str(error).partition("\n")[0]
