"""Weights & Biases: a live view of a run that training never depends on."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from marin_core.report import Reporter
from marin_core.train.run_record import RunRecord

INIT_SECONDS = 60
"""How long the service may take to answer before the run goes on without it."""


class Tracker:
    """Sends metrics to W&B, or to an offline run under `folder/wandb`. Any failure is logged once and ends tracking, never training."""

    def __init__(self, record: RunRecord, folder: Path, reporter: Reporter) -> None:
        self._reporter = reporter
        self._run: Any = None
        tracker = record.config.tracker
        if tracker.mode == "disabled":
            return
        online = tracker.mode == "auto" and bool(os.environ.get("WANDB_API_KEY"))
        if not online:
            why = "asked for" if tracker.mode == "offline" else "WANDB_API_KEY is not set"
            reporter.log(f"W&B run {record.tracker_run_id} is written offline to {folder / 'wandb'} ({why}); upload it with `wandb sync`")
        try:
            self._run = self._start(record, folder, online=online)
        except Exception as error:  # W&B raises its own and its transport's kinds.
            self._fail(error)

    def _start(self, record: RunRecord, folder: Path, *, online: bool) -> Any:
        import wandb  # Hundreds of modules: loaded only where a run is tracked.

        folder.joinpath("wandb").mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(init_timeout=INIT_SECONDS, console="off", silent=True, x_disable_stats=True, disable_git=True)
        return wandb.init(
            project=record.config.tracker.project,
            group=record.config.tracker.group,
            name=record.run_name,
            id=record.tracker_run_id,
            resume="allow" if online else None,
            mode="online" if online else "offline",
            dir=str(folder),
            config=record.config.model_dump(mode="json"),
            settings=settings,
        )

    @property
    def url(self) -> str | None:
        """Where the run can be watched; None offline."""
        return getattr(self._run, "url", None) or None

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send the numbers of a step."""
        if self._run is None:
            return
        try:
            # Offline resumes restart W&B's own counter, so the step is always given.
            self._run.log(dict(values), step=step)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._run = None
        self._reporter.log(f"W&B tracking stopped, training goes on: {type(error).__name__}: {_without_key(str(error))}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._run is not None:
            try:
                self._run.finish(exit_code=0 if kind is None else 1)
            except Exception as failure:
                self._fail(failure)


def _without_key(text: str) -> str:
    key = os.environ.get("WANDB_API_KEY")
    return text.replace(key, "[WANDB_API_KEY]") if key else text
