"""Tracking never stops training and never shows a key."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marin_core.train.config import TrackerConfig
from marin_core.train.run_record import RunRecord
from marin_core.train.tracking import Tracker
from tests.train.test_loop import Recorder
from tests.train.tiny_run import tiny_config

KEY = "k" * 40


def record(**tracker: Any) -> RunRecord:
    config = tiny_config(tracker=TrackerConfig(**tracker))
    return RunRecord(fingerprint="f", run_name="r", tracker_run_id="id1", config=config)


def fake_wandb(monkeypatch: pytest.MonkeyPatch, run: Any) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def init(**values: Any) -> Any:
        calls.append(values)
        if isinstance(run, Exception):
            raise run
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
    return calls


def test_without_a_key_the_run_is_offline_and_says_so_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    calls, reporter = fake_wandb(monkeypatch, SimpleNamespace(log=lambda *a, **k: None, finish=lambda **k: None, url=None)), Recorder()
    with Tracker(record(), tmp_path, reporter) as tracker:
        tracker.log({"loss": 1.0}, 0)
        assert tracker.url is None
    assert (calls[0]["mode"], calls[0]["id"]) == ("offline", "id1")
    assert len(reporter.lines) == 1
    assert "offline" in reporter.lines[0]


def test_with_a_key_the_same_run_is_resumed_online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    calls = fake_wandb(monkeypatch, SimpleNamespace(log=lambda *a, **k: None, finish=lambda **k: None, url="https://wandb.ai/x"))
    with Tracker(record(), tmp_path, Recorder()) as tracker:
        assert tracker.url == "https://wandb.ai/x"
    assert (calls[0]["mode"], calls[0]["resume"], calls[0]["id"]) == ("online", "allow", "id1")
    assert KEY not in str(calls)


def test_disabled_loads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = fake_wandb(monkeypatch, None)
    with Tracker(record(mode="disabled"), tmp_path, Recorder()) as tracker:
        tracker.log({"loss": 1.0}, 0)
    assert calls == []


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_lost_network_is_logged_once_without_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    error = ConnectionError(f"no route for {KEY}")

    def fail(*_: object, **__: object) -> None:
        raise error

    def work(*_: object, **__: object) -> None: ...

    run = SimpleNamespace(log=fail if where == "log" else work, finish=fail if where == "finish" else work, url=None)
    fake_wandb(monkeypatch, error if where == "init" else run)
    reporter = Recorder()
    with Tracker(record(), tmp_path, reporter) as tracker:
        tracker.log({"loss": 1.0}, 0)
        tracker.log({"loss": 1.0}, 1)
    assert len(reporter.lines) == 1
    assert "training goes on" in reporter.lines[0]
    assert KEY not in reporter.lines[0]


@pytest.mark.slow
def test_the_real_offline_run_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    reporter = Recorder()
    with Tracker(record(), tmp_path, reporter) as tracker:
        tracker.log({"loss": 1.0}, 0)
    assert len(reporter.lines) == 1
    assert list(tmp_path.glob("wandb/offline-run-*/run-id1.wandb"))
