"""What processes of one training agree on, and how they notice that one is missing. Two real processes of two CPU devices each."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from marin_core import distributed
from marin_core.errors import InfrastructureError
from marin_jobs.pod import ABORTED_BY_JAX
from tests.train.gang_program import TENTH

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def launch(*arguments: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2"}
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@dataclass(frozen=True)
class Ended:
    """What a process of the program printed, as rows and on its error stream, and how it ended."""

    rows: list[dict[str, Any]]
    errors: str
    exit_code: int


@pytest.fixture(scope="module")
def ended() -> list[Ended]:
    """Both processes."""
    address = free_address()
    processes = [launch("-m", "tests.train.gang_program", str(process), address) for process in range(2)]
    printed = [process.communicate(timeout=300) for process in processes]
    return [
        Ended([json.loads(line) for line in out.splitlines() if line.startswith("{")], errors, process.returncode)
        for process, (out, errors) in zip(processes, printed, strict=True)
    ]


@pytest.fixture
def seen(ended: list[Ended]) -> list[dict[str, Any]]:
    """What they printed while both were there."""
    assert all(process.rows for process in ended), ended[0].errors
    return [process.rows[0] for process in ended]


def test_all_see_the_same_gang(seen: list[dict[str, Any]]) -> None:
    for process in range(2):
        assert (seen[process]["count"], seen[process]["devices"], seen[process]["local_devices"]) == (2, 4, 2)


def test_a_flag_raised_anywhere_is_seen_everywhere_and_only_then(seen: list[dict[str, Any]]) -> None:
    for process in range(2):
        assert [seen[process][name] for name in ("nowhere", "elsewhere", "nowhere_again")] == [False, True, False]


def test_values_arrive_exactly_and_with_their_types(seen: list[dict[str, Any]]) -> None:
    for process in range(2):
        assert seen[process]["from_lead"] == [TENTH, 7, True, "a/b"]
        assert [type(value) for value in seen[process]["from_lead"]] == [float, int, bool, str]
        assert seen[process]["from_each"] == [0.0, TENTH]


def test_agreement_leaves_nothing_behind_that_grows(seen: list[dict[str, Any]]) -> None:
    """20 rounds in which one process or the other said something; at most the last word of each stays."""
    assert seen[0]["keys_left"] <= 2


def test_sigterm_still_reaches_the_job(seen: list[dict[str, Any]]) -> None:
    """JAX's preemption service would take it, and nobody would save."""
    assert [seen[process]["sigterm"] for process in range(2)] == [True, True]


def test_a_barrier_ends_and_names_itself_and_who_is_missing(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["late"] == "process 0 of 2 is at 'evaluation' without process 1; waited 0 s"


def test_a_killed_peer_is_known_as_such_and_not_as_a_bug(ended: list[Ended]) -> None:
    """The other sees its connection closed. Where Gloo misses that, once in many times, its collective waits until JAX misses the peer's
    heartbeats and aborts the process, of which its keeper knows the meaning.
    """
    lead, killed = ended
    if lead.exit_code == 0:
        assert lead.rows[1]["known"], lead.rows[1]["collective"]
        assert lead.rows[1]["known_wrapped"]
    else:
        assert lead.exit_code == -signal.SIGABRT, lead.errors
        assert ABORTED_BY_JAX.decode() in lead.errors
    assert len(killed.rows) == 1  # it was killed before it could print


def test_a_gang_that_is_not_complete_in_time_ends() -> None:
    """JAX aborts the process; a keeper takes that for what it is, infrastructure."""
    alone = launch("-c", f"from marin_core import distributed; distributed.start({free_address()!r}, 2, 0, startup_seconds=1)")
    _, error = alone.communicate(timeout=300)
    assert alone.returncode == -signal.SIGABRT, error


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InfrastructureError, match=f"can't serve the others at {address}: .*in use"):
            distributed.start(address, 2, 0)


def test_one_process_agrees_with_itself_at_once() -> None:
    distributed.start("", 1, 0)
    assert (distributed.process_index(), distributed.process_count(), distributed.is_lead()) == (0, 1, True)
    assert (distributed.anywhere(True), distributed.anywhere(False)) == (True, False)
    assert math.isnan(distributed.from_lead(math.nan))
    assert distributed.from_each("x") == ["x"]
    distributed.barrier("nobody else", 0)
    distributed.stop()
    assert not distributed.is_running()


@pytest.mark.parametrize("text", ["INVALID_ARGUMENT: shapes differ", "RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes"])
def test_an_error_of_this_process_is_no_lost_peer(text: str) -> None:
    assert not distributed.peer_lost(JaxRuntimeError(text))
    assert not distributed.peer_lost(ValueError("Connection reset by peer"))
