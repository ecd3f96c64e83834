"""The worker's side of `child`: one task, request after request."""

import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from marin_core.data.transforms.child import ChildError, read_frame, write_frame

Work = Callable[[Mapping[str, Any], bytes], tuple[dict[str, Any], bytes]]
"""A request and its bytes → an answer and its bytes. Raises `ChildError` to refuse."""


def _work_for(task: str) -> Work:
    if task == "html":
        from marin_core.data.transforms import html

        return html.work
    if task == "pdf":
        from marin_core.data.transforms import pdf

        return pdf.work
    from marin_core.data.transforms import wiki

    return wiki.work


def serve(task: str, memory_bytes: int) -> None:
    """Answer requests until the input ends. Whatever a library prints goes nowhere, since standard output carries answers."""
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    work = _work_for(task)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    try:
        while _answer(task, work, answers, memory_bytes):
            pass
    except MemoryError:  # not even for the input; an accident with it, unlike a worker that can't start
        os.kill(os.getpid(), signal.SIGKILL)


def _answer(task: str, work: Work, answers: IO[bytes], memory_bytes: int) -> bool:
    """Read one request and answer it; False once there is none."""
    try:
        request, data = read_frame(sys.stdin.buffer)
    except EOFError:
        return False
    # The kernel ends the process by its CPU time, wherever it is, native code included; SIGPROF has no handler.
    signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])
    try:
        answer, result = work(request, data)
    except ChildError as error:
        answer, result = {"reason": error.reason, "detail": error.detail}, b""
    except MemoryError:
        answer, result = {"reason": "memory", "detail": f"more than {memory_bytes} bytes"}, b""
    except Exception as error:
        answer, result = {"reason": f"error:{task}:{type(error).__name__}", "detail": str(error)[:200]}, b""
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    write_frame(answers, answer, result)
    return True


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
