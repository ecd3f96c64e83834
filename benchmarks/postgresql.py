"""A PostgreSQL of its own from the distribution's programs: below a temporary folder, on a socket, with log-in by system user."""

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers import PeerError

PORT = "5432"
"""Part of the socket's name; nothing listens in the network."""


def programs() -> Path:
    """Folder of the newest installed server's programs.

    Raises:
        PeerError: there is none, or it can't be run here.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise PeerError("no PostgreSQL below /usr/lib/postgresql", advice="Install the distribution's: apt-get install postgresql.")
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        raise PeerError("PostgreSQL refuses to run as root, and there is no runuser", advice="Run it as another user.")
    return found[-1].parent


@contextmanager
def server() -> Iterator[Path]:
    """A running server with a database `dagster` of this process's user; yields what goes into PGHOST.

    Raises:
        PeerError: it can't be run here, with its own last words.
    """
    binaries = programs()
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    root = os.geteuid() == 0
    owner = "postgres" if root else getpass.getuser()
    if root:
        shutil.chown(folder, "postgres", "postgres")
    folder.chmod(0o755)

    def run(*command: str) -> None:
        user = ["runuser", "-u", owner, "--"] if root else []
        done = subprocess.run([*user, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise PeerError(f"{Path(command[0]).name} failed: {done.stdout[-500:]}", advice="See what it says.")

    pg_ctl = [str(binaries / "pg_ctl"), "-D", str(folder / "data"), "-w"]
    try:
        run(str(binaries / "initdb"), "-D", str(folder / "data"), "-U", owner, "--auth-local=peer", "--no-sync", "--no-instructions")
        run(*pg_ctl, "-l", str(folder / "log"), "-o", f"-k {folder} -p {PORT} -c listen_addresses=''", "start")
        try:
            if root:
                run(str(binaries / "createuser"), "-h", str(folder), "-p", PORT, "root")
            run(str(binaries / "createdb"), "-h", str(folder), "-p", PORT, "--owner", getpass.getuser(), "dagster")
            yield folder
        finally:
            run(*pg_ctl, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
