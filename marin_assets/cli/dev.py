"""`marin dev`: the Dagster UI and daemon on this project."""

import argparse
import os
import socket
import sys
from pathlib import Path

from marin_assets.cli.main import Commands, Common, positive
from marin_assets.place import PROJECT
from marin_core.errors import ConfigError, ExitCode

HOST = "127.0.0.1"
"""Only this machine: the open-source UI has no log-in."""


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser("dev", help="open the Dagster UI on this project")
    parser.add_argument("--port", type=positive, default=3000)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    dev(options.port)
    return ExitCode.DONE


def dev(port: int) -> None:
    """Become `dagster dev`, after making sure that it can be reached.

    Raises:
        ConfigError: the port is taken. Dagster itself says that it serves there, and fails a moment later.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {HOST} can't be used: {error.strerror}",
                advice=f"Stop what listens there, or choose another: make dev PORT={port + 1}",
            ) from error
    from marin_assets.instance import use_project_home

    use_project_home()
    os.chdir(PROJECT)
    command = str(Path(sys.executable).with_name("dagster"))
    os.execv(command, [command, "dev", "-w", "workspace.yaml", "-h", HOST, "-p", str(port)])  # noqa: S606
