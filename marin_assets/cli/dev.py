"""`marin dev`: the Dagster UI and daemon on this project."""

import os
import socket
import sys
from pathlib import Path

from marin_assets.instance import use_project_home
from marin_assets.lab import PROJECT
from marin_core.errors import ConfigError

HOST = "127.0.0.1"
"""Only this machine: the open-source UI has no log-in."""


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
    use_project_home()
    os.chdir(PROJECT)
    command = str(Path(sys.executable).with_name("dagster"))
    os.execv(command, [command, "dev", "-w", "workspace.yaml", "-h", HOST, "-p", str(port)])  # noqa: S606
