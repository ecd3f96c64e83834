"""Work on untrusted input in a child process: bounded in CPU time and memory, replaced when it dies.

A worker is `python -m marin_core.data.transforms.worker TASK`. It reads requests from its standard input and answers on its standard
output; a request and an answer are a JSON object and bytes, each behind its length, and nothing else: no pickle, no code. It is
started afresh, never forked, so threads of the parent do no harm, and it ends when its input does.
"""

import contextlib
import json
import os
import selectors
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Literal

from marin_core.errors import MarinError

MIB = 1 << 20
FRAME = struct.Struct(">IQ")
"""Lengths of the JSON object and of the bytes behind it."""
IDLE_FACTOR = 30
"""Wall-clock time for one request, as a multiple of its CPU time and beyond a minute: only a deadlock takes so long."""

Task = Literal["html", "pdf", "wiki"]


class ChildError(Exception):
    """A request has no answer; `reason` is `timeout`, `memory`, `crashed`, or what the task says."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass
class Child:
    """A worker process, started at the first request and again after each that it didn't survive.

    Attributes:
        task: what it does.
        cpu_seconds: CPU time for one request.
        memory_bytes: address space of the worker.
        started: how often it was started.
    """

    task: Task
    cpu_seconds: float
    memory_bytes: int = 1024 * MIB
    started: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def call(self, request: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Send one request and wait for its answer.

        Raises:
            ChildError: there is none: it took too long or too much, the worker died, or the task refused the input.
            MarinError: the worker can't even start.
        """
        process = self._process or self._start()
        try:
            write_frame(process.stdin, {"cpu_seconds": self.cpu_seconds, **request}, data)
            self._wait(process)
            answer, result = read_frame(process.stdout)
        except (OSError, EOFError) as error:
            raise self._died(process) from error
        if "reason" in answer:
            raise ChildError(answer["reason"], answer.get("detail", ""))
        return answer, result

    def close(self) -> None:
        """End the worker; the next request starts another."""
        if self._process is not None:
            process, self._process = self._process, None
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        """Nothing of the parent's environment reaches the worker, and no core file is written."""
        from marin_core.data.transforms import worker  # named, not spelled out: what it does is code behind the artifact

        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONHASHSEED": "0",
            "LC_ALL": "C.UTF-8",
            "RUST_BACKTRACE": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", worker.serve.__module__, self.task, str(self.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
        )
        self.started += 1
        return self._process

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the worker answers or ends; one that does neither for very long is killed."""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
            if not selector.select(60 + IDLE_FACTOR * self.cpu_seconds):
                process.send_signal(signal.SIGPROF)

    def _died(self, process: subprocess.Popen[bytes]) -> ChildError:
        code = process.wait()
        self.close()
        if code > 0:  # a signal is an accident with one input; an exit is not, and would reject every document
            raise MarinError(
                f"the worker for {self.task!r} ended with exit code {code}",
                advice=f"Start it by hand to see why: python -m marin_core.data.transforms.worker {self.task} {self.memory_bytes}.",
            )
        if code == -signal.SIGPROF:
            return ChildError("timeout", f"more than {self.cpu_seconds:g} s of CPU time")
        return ChildError("crashed", f"the worker ended with {code}")


def write_frame(stream: IO[bytes] | None, header: Mapping[str, Any], data: bytes) -> None:
    """Write a JSON object and bytes."""
    assert stream is not None  # noqa: S101  # both ends are pipes
    encoded = json.dumps(header, ensure_ascii=False).encode()
    stream.write(FRAME.pack(len(encoded), len(data)) + encoded)
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes] | None) -> tuple[dict[str, Any], bytes]:
    """Read a JSON object and bytes; raises EOFError if the stream ends before."""
    assert stream is not None  # noqa: S101
    lengths = _exactly(stream, FRAME.size)
    header, data = FRAME.unpack(lengths)
    return json.loads(_exactly(stream, header)), _exactly(stream, data)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
