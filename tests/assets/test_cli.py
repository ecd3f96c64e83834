"""`marin`: exit codes and messages of the terminal; building through it is tested in tests/integration."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from marin_assets.cli import main
from marin_assets.cli.main import parser
from marin_core.artifact import ArtifactId, Store
from tests.assets.conftest import Said
from tests.assets.fabricated import Fabricated, step

PROJECT = Path(__file__).resolve().parents[2]
Marin = Callable[..., Said]


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["materialize", "nonsense"], ["nothing is called 'nonsense'", "tutorial", " more"]),
        (["materialize", "raw/python_stdlib@v9"], ["no experiment declares raw/python_stdlib@v9", "raw/python_stdlib@v1"]),
        (["materialize", "filtered/python_code@v1/00099"], ["no partition '00099'", "00000"]),
        (["materialize", "raw/python_stdlib@v1/00000"], ["no partition '00000'", "no family"]),
        (["materialize", "../x@v1"], ["artifact name", "'..'"]),
        (["materialize", "--rebuild", "raw/python_stdlib"], ["a fixed version is never rebuilt"]),
        (["materialize", "tutorial", "--workers", "0"], ["'0' is no positive number", "usage: marin materialize"]),
        (["plan", "nonsense"], ["nothing is called"]),
        (["status", "tutorial"], ["invalid choice: 'status'", "'plan'"]),
        ([], ["COMMAND", "marin --help"]),
    ],
)
def test_wrong_usage_is_explained_and_exits_64(arguments: list[str], says: list[str], prefix: Path, marin: Marin) -> None:
    said = marin(*arguments)
    assert (said.code, said.out) == (64, "")
    assert all(word in said.err for word in [*says, "What to do"])
    if arguments:
        as_json = marin(*arguments, "--json")
        error = json.loads(as_json.err)["error"]
        assert (as_json.code, as_json.out, error["exit_code"]) == (64, "", 64)
        assert says[0] in error["message"] + error["advice"]
        assert error["advice"]


def test_a_name_among_thousands_is_answered_with_the_closest(fabricated: Fabricated, marin: Marin) -> None:
    fabricated.declare(*(step(f"filtered/source_{number}") for number in range(1000)))
    said = marin("plan", "filtered/source_77@v2")
    assert "filtered/source_77@v1" in said.err
    assert "and 980 more" in said.err


def test_a_defect_exits_70_with_its_trace(fabricated: Fabricated, marin: Marin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_assets.experiments.load_experiments", lambda: 1 / 0)
    said = marin("plan", "x")
    assert said.code == 70
    assert "Traceback" in said.err
    error = json.loads(marin("plan", "x", "--json").err)["error"]
    assert (error["message"], error["exit_code"]) == ("ZeroDivisionError: division by zero", 70)


def commands() -> dict[str, set[str]]:
    """Options of every command of the parser."""
    (action,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    return {
        name: {option for each in command._actions for option in each.option_strings if option.startswith("--")} - {"--help", "--json"}
        for name, command in action.choices.items()
    }


def test_the_reference_lists_every_command_and_option() -> None:
    reference = (PROJECT / "docs" / "reference" / "cli.md").read_text()
    documented = {
        heading.split()[0]: set(re.findall(r"--[a-z-]+", heading)) for heading in re.findall(r"^## `marin (.*)`$", reference, re.MULTILINE)
    }
    assert documented == commands()


def test_commands_that_only_read_the_store_start_without_dagster(fabricated: Fabricated) -> None:
    script = (
        "import sys; from marin_assets.cli import main\n"
        "codes = [main(a) for a in (['plan', 'tutorial'], ['show', 'x'], ['diff', 'x', 'y'], ['lineage', 'x'], ['verify', 'tutorial'])]\n"
        "print(codes, 'dagster' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert done.stdout.splitlines()[-1] == "[1, 64, 64, 64, 1] False"


def test_a_reader_that_stops_reading_is_no_error(fabricated: Fabricated) -> None:
    """As in `marin plan tutorial | head -1`."""
    command = [sys.executable, "-m", "marin_assets.cli", "plan", "tutorial", "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, cwd=PROJECT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_failed_build_exits_with_the_class_of_its_failure(tmp_path: Path) -> None:
    """The one build here that is real: Dagster, jobs, and data that isn't what was promised."""
    (tmp_path / "lab_under_test").mkdir()
    (tmp_path / "lab_under_test" / "__init__.py").write_text("")
    (tmp_path / "lab_under_test" / "broken.py").write_text(BROKEN)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("not what was promised")
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    environment = {
        **os.environ,
        "MARIN_PREFIX": str(tmp_path / "store"),
        "MARIN_EXPERIMENTS": "lab_under_test",
        "DAGSTER_HOME": str(tmp_path),
        "PYTHONPATH": f"{tmp_path}:{PROJECT}",
        "DATA": str(tmp_path / "data"),
    }
    command = [sys.executable, "-m", "marin_assets.cli", "materialize", "broken", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = json.loads(done.stdout)
    states = {each["artifact"]: (each["state"], each["exit_code"]) for each in found["artifacts"]}
    assert (done.returncode, found["exit_code"]) == (65, 65)
    assert states == {
        "raw/intact@v1": ("built", 0),
        "raw/broken@v1": ("failed", 65),
        "report/intact@v1": ("built", 0),
        "report/broken@v1": ("not started", 0),
    }
    assert "has the digest" in next(each["error"] for each in found["artifacts"] if each["artifact"] == "raw/broken@v1")


BROKEN = """
import os
from marin_core import experiment as lab

intact = lab.adopted("raw/intact", "v1", os.environ["DATA"])
broken = lab.adopted("raw/broken", "v1", os.environ["DATA"], digest="0" * 64)
reports = [lab.summary("report/intact", "v1", [intact]), lab.summary("report/broken", "v1", [intact, broken])]
EXPERIMENT = lab.experiment("broken", *reports, question="?", hypothesis="!")
"""


def test_a_prefix_that_cannot_be_written_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "file" / "store"))
    assert main(["materialize", "raw/python_stdlib"]) == 64
    assert "can't be written" in capsys.readouterr().err


def test_a_port_in_use_is_named_before_dagster_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["dev", "--port", str(port)]) == 64
    assert f"port {port} on 127.0.0.1 can't be used" in capsys.readouterr().err


def test_an_unknown_package_of_experiments_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "marin_assets.cli", "plan", "x"],
        env={**os.environ, "MARIN_EXPERIMENTS": "no.such.package"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert "no.such.package" in done.stderr


def in_group(process: psutil.Process, group: int) -> bool:
    """Whether a process of the group is alive; an orphan that nobody has reaped yet is not."""
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


@pytest.mark.parametrize("sign", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_ends_the_command_its_workers_and_the_job(sign: signal.Signals, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    environment = {**os.environ, "MARIN_PREFIX": store.prefix, "DAGSTER_HOME": str(tmp_path)}
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    command = subprocess.Popen(
        [sys.executable, "-m", "marin_assets.cli", "materialize", "raw/python_stdlib"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not list((tmp_path / "store" / ".jobs").glob("*/messages")) and time.monotonic() < deadline:
        time.sleep(0.01)
    command.send_signal(sign)
    command.communicate(timeout=300)
    assert command.returncode == 130
    artifact = ArtifactId("raw/python_stdlib", "v1")
    assert store.record(artifact) is None
    left = [process for process in psutil.process_iter() if in_group(process, command.pid)]
    _, alive = psutil.wait_procs(left, timeout=120)  # helpers of multiprocessing end when they notice
    assert [process for process in alive if in_group(process, command.pid)] == []
    (folder,) = (tmp_path / "store" / ".jobs").glob("m-*")
    assert (folder / "outcome.json").exists()
