"""Reads a job's Dagster Pipes messages from its folder, in the asset's own thread, from the beginning at every attach."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.pipes.context import PipesMessageHandler, PipesSession, build_external_execution_context_data
from dagster_pipes import PipesParams


@contextmanager
def open_job_session(context: dg.AssetExecutionContext | dg.OpExecutionContext, reader: "JobMessageReader") -> Iterator[PipesSession]:
    """What `dg.open_pipes_session` opens, but without its demand that each declared check be reported: `reproduced` may have no result."""
    injector = dg.PipesEnvContextInjector()
    data = build_external_execution_context_data(context, None)
    handler = PipesMessageHandler(context, reader)
    with injector.inject_context(data) as injected, handler.handle_messages() as reading:
        yield PipesSession(data, handler, injected, reading, context)


class JobMessageReader(dg.PipesMessageReader):
    """Hands standard messages to Dagster, and `report_custom_message` payloads to `on_message`.

    No thread: whoever waits for the job calls `pump`. Dagster's own file reader needs a thread, whose errors surface late,
    and a file of its own making, which nobody could find again after the run worker was lost.
    """

    def __init__(self, folder: Path, on_message: Callable[[Mapping[str, Any]], None]) -> None:
        self._messages = _Tail(folder / "messages")
        self._log = _Tail(folder / "log")
        self._on_message = on_message
        self._handler: PipesMessageHandler | None = None
        self._closed: Any = None

    @contextmanager
    def read_messages(self, handler: PipesMessageHandler) -> Iterator[PipesParams]:
        self._handler = handler
        yield {"path": str(self._messages.path)}
        if self._closed is not None:
            handler.handle_message(self._closed)

    def pump(self) -> None:
        """Handle everything that arrived since the last call; the job's log goes to stdout, which the UI keeps per step.

        Outside a session that is the log alone.
        """
        if self._handler is not None:
            self._pump_messages(self._handler)
        for line in self._log.lines():
            sys.stdout.write(line)
        sys.stdout.flush()

    def _pump_messages(self, handler: PipesMessageHandler) -> None:
        for line in self._messages.lines():
            try:
                message = json.loads(line)
            except ValueError:  # a full disk took half of a message, and the next one stands on the same line
                sys.stdout.write(f"a message of the job can't be read, its {len(line)} characters begin with {line[:80]!r}\n")
                continue
            if message.get("method") == "closed":  # until the end: a cluster may start the job again, and then it goes on speaking
                self._closed = message
                continue
            self._closed = None
            if message.get("method") == "report_custom_message":
                self._on_message(message["params"]["payload"])
            else:
                handler.handle_message(message)

    def no_messages_debug_text(self) -> str:
        return f"Tried to read messages from {self._messages.path}; the job's log beside it may say why there are none."


class _Tail:
    """Complete lines of a growing file; a line still being written waits for its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def lines(self) -> Iterator[str]:
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line.decode(errors="replace")
