"""Peers to measure against, each in a throwaway environment of its own, so that its dependencies never meet ours."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marin_core.errors import InfrastructureError

INSTALL_TIMEOUT_SECONDS = 1800


class PeerError(InfrastructureError):
    """A peer can't be installed or run here. Its `message` is the reason that the benchmark's row carries instead of a number."""


def default_folder() -> Path:
    """Where environments of peers stay between runs: the user's cache, since a peer takes minutes and gigabytes to install."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marin-assets" / "peers"


def peer_environment(
    name: str,
    requirements: Sequence[str],
    *,
    folder: Path | None = None,
    timeout_seconds: float = INSTALL_TIMEOUT_SECONDS,
) -> Path:
    """Make a virtual environment with the requirements, once, and return its Python.

    The environment is of the running interpreter's version. Another set of requirements makes another environment, and one whose making
    was cut short is made again. uv installs where it stands beside the running interpreter, as in `make install`; else pip, whose resolver
    may take minutes longer.

    Args:
        name: the peer's name, for the folder and for messages.
        requirements: what to install; pin the peer itself (`name==version`), or the benchmark compares against something new each week.
        folder: keeps the environments of all peers; `default_folder()` if not given.
        timeout_seconds: after which the installation counts as impossible.

    Raises:
        PeerError: it can't be installed, with the installer's last word.
    """
    wanted = {"python": sys.version, "requirements": sorted(requirements)}
    digest = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:12]
    home = folder or default_folder()
    environment = home / f"{name}-{digest}"
    python = environment / "bin" / "python"
    complete = environment / "complete.json"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _only_one(home / f"{name}-{digest}.lock"):
            if not complete.exists():
                try:
                    shutil.rmtree(environment, ignore_errors=True)
                    _install(environment, python, requirements, timeout_seconds)
                    complete.write_text(json.dumps(wanted, indent=2) + "\n")
                finally:
                    if not complete.exists():
                        shutil.rmtree(environment, ignore_errors=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError(
            f"peer {name} can't be installed: {_reason(error)}",
            advice=f"Install {' '.join(requirements)} by hand into an empty environment to see why; the other rows stand without it.",
        ) from error
    return python


def run_peer(python: Path, script: Path, arguments: Sequence[str], *, timeout_seconds: float) -> Mapping[str, Any]:
    """Run a script inside a peer's environment and return the JSON object that it prints as its last line.

    Raises:
        PeerError: it failed, took too long, or printed something else.
    """
    # -I keeps our checkout, the script's own folder (whose report.py isn't the peer's) and PYTHON* variables out of the peer's imports.
    command = [str(python), "-I", str(script), *arguments]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout_seconds)
        printed = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise PeerError(
            f"{script.stem} can't be run: {_reason(error)}",
            advice=f"Run {' '.join(command)} by hand to see all that it prints.",
        ) from error
    if not isinstance(printed, dict):
        raise PeerError(f"{script.stem} printed {printed!r:.80} where a JSON object was due", advice=f"Run {' '.join(command)} by hand.")
    return printed


def _install(environment: Path, python: Path, requirements: Sequence[str], timeout_seconds: float) -> None:
    """Fill a new environment. Bytecode is compiled with it, or a peer's import would be measured with the compiler's time in it."""
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        steps = [
            [sys.executable, "-m", "venv", "--without-pip", str(environment)],
            [str(uv), "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *requirements],
        ]
    else:
        steps = [
            [sys.executable, "-m", "venv", str(environment)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *requirements],
        ]
    # An environment variable that names another environment or turns off bytecode would change what is installed where.
    inherited = {
        key: value for key, value in os.environ.items() if key not in {"PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}
    }
    for step in steps:
        subprocess.run(step, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=inherited, timeout=timeout_seconds)


def _reason(error: Exception) -> str:
    """What a failed command said from its last error on, in one line and without addresses: rows are published, mirrors may be private."""
    match error:
        case subprocess.TimeoutExpired():
            return f"it took longer than {error.timeout:g} s"
        case subprocess.CalledProcessError():
            said = [line.strip() for line in f"{error.stdout or ''}\n{error.stderr or ''}".splitlines() if line.strip()]
            at = max((i for i, line in enumerate(said) if "error" in line.lower()), default=len(said) - 1)
            text = f"{' '.join(said[at:]) or 'it said nothing'} (exit status {error.returncode})"
        case _:
            text = f"{type(error).__name__}: {error}"
    text = re.sub(r"[a-z+]+://\S+", "<address>", text)
    text = re.sub(r"(host=?\s*)'[^']*'", r"\1'<address>'", text)
    text = re.sub(r"\(from versions: .*\)", "(not among the versions on offer)", text)
    return text if len(text) <= 300 else f"{text[:299]}…"


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Hold a file's lock: a second benchmark waits for the first one's installation instead of writing into it."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
