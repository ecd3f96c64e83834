"""Files of one machine: systemd and Dagster read them, and they hold what the threat note says."""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config
from dagster._core.instance.ref import InstanceRef
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster_postgres.utils import pg_url_from_config
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from marin_assets.launch.workers import MachineRunLauncher
from marin_core.redaction import secrets_of_environment
from tests.deploy.machine import FILES, PROJECT, SERVICES, UNITS, Machine, installed, offered, read_environment, read_unit, readme_block

ANALYZE = shutil.which("systemd-analyze")
EXPOSURE = {"marin-code": 40, "marin-daemon": 20, "marin-webserver": 20}
"""Tenths at most, of what `systemd-analyze security` calls exposure: 0 is a locked box, 100 a root shell. Jobs need devices."""


@pytest.fixture
def machine() -> Iterator[Machine]:
    with installed() as made:
        yield made


@pytest.fixture
def home(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """DAGSTER_HOME, with the environment of the services."""
    for name, value in read_environment(machine.path("/etc/marin/lab.env")).items():
        monkeypatch.setenv(name, value)
    return Path(os.environ["DAGSTER_HOME"])


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze here")
def test_systemd_accepts_every_unit_and_would_name_a_wrong_line(machine: Machine) -> None:
    def complaints() -> str:
        units = [str(path) for path in sorted(machine.path("/etc/systemd/system").glob("*.service"))]
        done = subprocess.run([str(ANALYZE), "verify", "--recursive-errors=no", *units], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert complaints() == ""
    unit = machine.path("/etc/systemd/system/marin-code.service")
    unit.write_text(unit.read_text().replace("KillMode=process", "KilMode=process"))
    assert "KilMode" in complaints()


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("name", sorted(EXPOSURE))
def test_services_are_locked_in(name: str) -> None:
    command = [str(ANALYZE), "security", "--offline=true", f"--threshold={EXPOSURE[name]}", "--no-pager", str(FILES / f"{name}.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("service", SERVICES)
def test_no_service_is_root_or_can_write_the_system(service: str) -> None:
    settings = read_unit(FILES / f"marin-{service}.service")["Service"]
    wanted = {"User": "marin", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "CapabilityBoundingSet": ""}
    assert {key: settings[key] for key in wanted} == {key: [value] for key, value in wanted.items()}
    assert settings["Restart"] == ["always"]
    for path in settings["ReadWritePaths"][0].split():
        assert path.startswith(("/var/lib/marin", "/opt/marin/.dagster"))


def test_jobs_outlive_the_code_server_and_keep_their_files() -> None:
    settings = read_unit(FILES / "marin-code.service")["Service"]
    assert settings["KillMode"] == ["process"]
    assert settings["OOMPolicy"] == ["continue"]
    emptied_at_a_stop = {"PrivateTmp", "RuntimeDirectory", "LoadCredential", "LoadCredentialEncrypted", "SetCredential", "DynamicUser"}
    assert not emptied_at_a_stop & set(settings)
    limits = {"RuntimeMaxSec", "MemoryMax", "CPUQuota"}
    assert not limits & set(settings)


def test_only_jobs_get_secrets() -> None:
    readers = [path.stem for path in UNITS if "/etc/marin/secrets.env" in read_unit(path)["Service"].get("EnvironmentFile", [])]
    assert readers == ["marin-code"]


def test_whoever_shows_or_starts_runs_is_stopped_before_jobs_are_told_to_save() -> None:
    for service in ("daemon", "webserver"):
        assert "marin-shutdown.service" in read_unit(FILES / f"marin-{service}.service")["Unit"]["After"][0].split()
    shutdown = read_unit(FILES / "marin-shutdown.service")
    assert {"marin-code.service", "postgresql.service"} <= set(shutdown["Unit"]["After"][0].split())
    assert "--signal=SIGTERM marin-code.service" in shutdown["Service"]["ExecStop"][0]


def test_nothing_listens_beyond_the_machine(machine: Machine) -> None:
    webserver = machine.command("webserver")
    assert webserver[webserver.index("--host") + 1] == "127.0.0.1"
    address = f"127.0.0.1:{webserver[webserver.index('--port') + 1]}"
    assert f"reverse_proxy {address}" in (FILES / "Caddyfile").read_text()
    code = machine.command("code")
    assert not {"--port", "-p", "--host", "-h"} & set(code)


def test_dagster_finds_the_code_server_where_it_listens(machine: Machine) -> None:
    origins = location_origins_from_yaml_paths([str(machine.path("/etc/marin/workspace.yaml"))])
    code = machine.command("code")
    (origin,) = origins
    assert isinstance(origin, GrpcServerCodeLocationOrigin)
    assert origin.socket == code[code.index("--socket") + 1]
    assert origin.location_name == code[code.index("--location-name") + 1] == "marin"
    assert f"--socket {origin.socket};" in machine.unit("daemon")["Service"]["ExecStartPre"][0]
    assert Path(str(origin.socket)).parent == machine.path("/var/lib/marin/sockets")
    assert stat.S_IMODE(machine.path("/var/lib/marin/sockets").stat().st_mode) == 0o700


def test_dagster_reads_its_instance(home: Path) -> None:
    config, _ = dagster_instance_config(str(home))
    ours = yaml.safe_load((PROJECT / "dagster.yaml").read_text())
    assert config["run_retries"]["enabled"]
    assert config["run_retries"]["retry_on_asset_or_op_failure"] is ours["run_retries"]["retry_on_asset_or_op_failure"] is False
    assert config["run_monitoring"]["max_resume_run_attempts"] == ours["run_monitoring"]["max_resume_run_attempts"] == 0
    assert config["concurrency"]["pools"] == ours["concurrency"]["pools"]
    reference = InstanceRef.from_dir(str(home))
    assert isinstance(reference.run_launcher, MachineRunLauncher)
    assert reference.run_launcher.supports_check_run_worker_health


def test_the_database_is_found_by_libpq_and_no_password_passes_through_dagster(home: Path) -> None:
    reference = InstanceRef.from_dir(str(home))
    storages = [reference.run_storage_data, reference.event_storage_data, reference.schedule_storage_data]
    assert {data.class_name for data in storages if data} == {"PostgresRunStorage", "PostgresEventLogStorage", "PostgresScheduleStorage"}
    text = (home / "dagster.yaml").read_text()
    given = yaml.safe_load(text)["storage"]["postgres"]["postgres_db"]
    assert "password" not in text.replace("the password, if any", "")
    resolved = {key: os.environ[value["env"]] if isinstance(value, dict) else value for key, value in given.items()}
    url = make_url(pg_url_from_config({"postgres_db": resolved}))
    assert url.drivername == "postgresql+psycopg2"
    arguments = create_engine(url).dialect.create_connect_args(url)[1]
    assert arguments == {"user": "marin", "dbname": "dagster", "port": 5432}


def test_logs_go_to_a_bucket_by_two_variables(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Client:
        def bucket(self, name: str) -> SimpleNamespace:
            asked.append(name)
            return SimpleNamespace(exists=lambda: True)

    monkeypatch.setattr("google.cloud.storage.Client", Client)
    monkeypatch.setenv("MARIN_LOG_BUCKET", "my-lab-logs")
    monkeypatch.setenv("MARIN_LOG_STAGING", str(tmp_path))
    with (home / "dagster.yaml").open("a") as file:
        file.write((FILES / "compute-logs-gcs.yaml").read_text())
    manager = InstanceRef.from_dir(str(home)).compute_log_manager
    assert type(manager).__name__ == "GCSComputeLogManager"
    assert asked == ["my-lab-logs"]


def test_every_variable_is_offered_and_secrets_have_names_that_are_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {name for path in FILES.glob("*.yaml") for name in re.findall(r"\{env: (\w+)\}", path.read_text())}
    assert named <= offered(FILES / "lab.env")
    secret = offered(FILES / "secrets.env")
    for name in secret | offered(FILES / "lab.env"):
        monkeypatch.setenv(name, f"the value of {name}")
    assert {name for value, name in secrets_of_environment().items() if value.startswith("the value of ")} == secret
    assert read_environment(FILES / "secrets.env") == {}


def test_the_readme_puts_every_file_in_place(machine: Machine) -> None:
    readme = (FILES / "README.md").read_text()
    for path in FILES.iterdir():
        assert path.name == "README.md" or f"`{path.name}`" in readme, path.name
    mode = {
        path: stat.S_IMODE(machine.path(path).stat().st_mode) for path in ("/etc/marin/secrets.env", "/var/lib/marin", "/usr/local/bin/lab")
    }
    assert mode == {"/etc/marin/secrets.env": 0o600, "/var/lib/marin": 0o700, "/usr/local/bin/lab": 0o755}
    for unit in machine.path("/etc/systemd/system").glob("*.service"):
        settings = read_unit(unit)["Service"]
        paths = " ".join(settings.get("ReadWritePaths", []) + settings.get("EnvironmentFile", []) + settings.get("WorkingDirectory", []))
        sources = [each.split(":")[0] for each in settings.get("BindPaths", [])]
        missing = [path for path in [*paths.split(), *sources] if not Path(path).exists()]
        assert not missing, unit.name
    started = readme_block("Start")
    assert all(path.stem in started for path in UNITS)


def test_a_command_runs_as_the_services_do(machine: Machine, tmp_path: Path) -> None:
    program = tmp_path / "show"
    program.write_text('#!/bin/sh\nprintf "%s|" "$PWD" "$DAGSTER_HOME" "$PGUSER" "$HOME" "$@"\n')
    program.chmod(0o755)
    script = machine.path("/usr/local/bin/lab")
    script.write_text(script.read_text().replace(str(PROJECT / ".venv" / "bin"), str(tmp_path)))
    done = subprocess.run(
        [str(script), "show", "a b", "$HOME"], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    lab = machine.path("/var/lib/marin")
    assert done.stdout.split("|")[:-1] == [str(machine.root / "opt/marin"), f"{lab}/dagster", "marin", str(lab), "a b", "$HOME"]
