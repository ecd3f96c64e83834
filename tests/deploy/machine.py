"""`deploy/machine` as its README puts it in place, below a temporary folder: folders, files, units and their environment."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

PROJECT = Path(__file__).resolve().parents[2]
FILES = PROJECT / "deploy" / "machine"
UNITS = sorted(FILES.glob("*.service"))
SERVICES = ("code", "daemon", "webserver")

type Unit = Mapping[str, Mapping[str, list[str]]]
"""Section → key → values, in the order of the file."""


def read_unit(path: Path) -> Unit:
    """A unit file, read strictly: every line is a comment, a section or a key with a value."""
    sections: dict[str, dict[str, list[str]]] = {}
    keys: dict[str, list[str]] | None = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if match := re.fullmatch(r"\[(\w+)\]", line):
            assert match[1] not in sections, f"{path.name}:{number} opens {line} again"
            keys = sections[match[1]] = defaultdict(list)
            continue
        match = re.fullmatch(r"([A-Z]\w+)=(.*\S|)", line)
        assert match, f"{path.name}:{number} is no setting: {line!r}"
        assert keys is not None, f"{path.name}:{number} is in no section"
        keys[match[1]].append(match[2])
    return sections


def read_environment(path: Path) -> dict[str, str]:
    """What systemd reads from such a file: NAME=VALUE lines without quotes."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*=[^\s'\"\\$`]*", line) for line in lines), lines
    return dict(line.split("=", 1) for line in lines)


def offered(path: Path) -> set[str]:
    """Names that such a file sets or offers to set."""
    return set(re.findall(r"(?m)^#?([A-Z][A-Z0-9_]*)=", path.read_text()))


def readme_block(title: str) -> str:
    """The first block of commands below a heading of the README."""
    text = (FILES / "README.md").read_text()
    match = re.search(rf"## \d+\. {re.escape(title)}\n.*?```sh\n(.*?)```", text, re.DOTALL)
    assert match, title
    return match[1]


@dataclass(frozen=True)
class Machine:
    """An installation below `root`, whose paths are those of the files with other beginnings."""

    root: Path

    def place(self, text: str) -> str:
        """The text with the paths of a real machine replaced by those of this one."""
        for real in ("/etc", "/var/lib/marin", "/usr/local/bin"):
            text = re.sub(rf"(?<![\w.]){real}(?=/|\b)", f"{self.root}{real}", text)
        return text.replace("/opt/marin/.venv", str(PROJECT / ".venv")).replace("/opt/marin", f"{self.root}/opt/marin")

    def path(self, real: str) -> Path:
        return Path(self.place(real))

    def unit(self, service: str) -> Unit:
        return read_unit(self.path(f"/etc/systemd/system/marin-{service}.service"))

    def command(self, service: str) -> list[str]:
        return shlex.split(self.unit(service)["Service"]["ExecStart"][0])

    def environment(self, service: str) -> dict[str, str]:
        """What systemd would give the service, and of this process only what finds programs."""
        settings = self.unit(service)["Service"]
        found = {"PATH": os.environ["PATH"]}
        for line in settings.get("Environment", []):
            found |= dict(word.split("=", 1) for word in shlex.split(line))
        for path in settings["EnvironmentFile"]:
            found |= read_environment(Path(path))
        return found

    def start(self, service: str, extra: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """A service as its unit starts it, after what comes before; its output goes to a file below `root`.

        Raises:
            subprocess.TimeoutExpired: what comes before takes longer than the unit allows.
        """
        settings = self.unit(service)["Service"]
        folder = Path(settings["WorkingDirectory"][0])
        environment = self.environment(service) | dict(extra or {})
        with (self.root / f"{service}.log").open("ab") as log:
            for before in settings.get("ExecStartPre", []):
                allowed = float(settings["TimeoutStartSec"][0])
                subprocess.run(shlex.split(before), cwd=folder, env=environment, stdout=log, stderr=log, timeout=allowed, check=True)
            return subprocess.Popen(
                self.command(service),
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@contextmanager
def installed() -> Iterator[Machine]:
    """What step 4 of the README makes, as the user of this process. The path is short: sockets allow about a hundred characters."""
    root = Path(tempfile.mkdtemp(prefix="lab-"))
    try:
        machine = Machine(root)
        for folder in ("etc/systemd/system", "etc/tmpfiles.d", "usr/local/bin", "var/lib", "opt/marin"):
            (root / folder).mkdir(parents=True)
        (root / "opt/marin/deploy").symlink_to(FILES.parent)
        commands = machine.place(re.sub(r" -o \w+ -g \w+", "", readme_block("Files").replace("sudo ", "")))
        subprocess.run(["bash", "-euc", commands], check=True, capture_output=True)  # noqa: S607
        for path in [*(root / "etc").rglob("*"), root / "usr/local/bin/lab"]:
            if path.is_file() and not path.is_symlink():
                path.write_text(machine.place(path.read_text()))
        yield machine
    finally:
        shutil.rmtree(root, ignore_errors=True)


def kill_tree(pid: int) -> None:
    """SIGKILL for a process and all below it, at once."""
    try:
        top = psutil.Process(pid)
        tree = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(tree, timeout=30)
