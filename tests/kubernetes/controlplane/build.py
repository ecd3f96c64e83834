"""Build the real control plane from Go modules: etcd, Kubernetes, JobSet and Kueue (spec/kubernetes.md §4.2).

No container registry and no binary download is needed: Go's module proxy serves the sources, each checked against the committed go.sum.
A folder beside this file is one module, since the projects don't agree on one set of dependencies. It holds no Go code: `tool` names the
projects' own main packages. Binaries are kept under the user's cache, keyed by what they are made from, so they are built once per machine.
From a cold cache that is about 15 minutes of two cores and 4 GB of Go's build cache.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marin" / "controlplane"
GO = shutil.which("go") or "go"
OLDEST_GO = (1, 26)
DOWNLOAD_ATTEMPTS = 5

KUEUE_METRICS = '"/etc/kueue/metrics/certs"'
KUEUE_CERTIFICATES = "certificates"
"""Kueue opens certificates at two absolute paths that no option changes (spec/kubernetes.md §4.3), where only root could put them, and for
one bed at a time. The one built here looks into this folder of its working directory instead; nothing else differs from the release."""


class BuildError(RuntimeError):
    """The control plane can't be built here."""


@dataclass(frozen=True)
class Program:
    """One program: its name, the module folder that pins its version, and its main package."""

    name: str
    module: str
    package: str

    @property
    def folder(self) -> Path:
        return SOURCES / self.module

    @property
    def version(self) -> str:
        """The pinned release of the project that the package belongs to, such as v1.36.3."""
        for line in (self.folder / "go.mod").read_text().splitlines():
            match = re.match(r"\s*(?:require )?(\S+) (v\d\S*)", line)
            if match and (self.package + "/").startswith(match[1] + "/"):
                return match[2]
        raise BuildError(f"{self.folder / 'go.mod'} requires no module for {self.package}")

    @property
    def linker_flags(self) -> str:
        """Kubernetes without a version reports a placeholder that Kueue refuses and kubectl complains about."""
        flags = ["-s", "-w"]
        if self.module == "kubernetes":
            major, minor = self.version.removeprefix("v").split(".")[:2]
            for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
                values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
                flags += [f"-X {package}.{name}={value}" for name, value in values.items()]
        if self.name == "kueue":
            flags.append(f"-X sigs.k8s.io/kueue/pkg/visibility.certDir={KUEUE_CERTIFICATES}")
        return " ".join(flags)

    @property
    def binary(self) -> Path:
        """Where the binary is, or will be: a new pin, Go release or flag gives a new path."""
        made_from = [self.name, self.package, self.linker_flags, *go_release()]
        made_from += [(self.folder / name).read_text() for name in ("go.mod", "go.sum")]
        return CACHE / hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:16] / self.name


# What shares packages follows each other; Kueue, the longest after the API server, comes last, since a bed can do without it.
PROGRAMS = [
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    Program("jobset", "queueing", "sigs.k8s.io/jobset"),
    Program("kueue", "queueing", "sigs.k8s.io/kueue/cmd/kueue"),
]


@cache
def go_release() -> tuple[str, str, str]:
    """Return Go's release, system and architecture. Raises `BuildError` where Go is missing or too old."""
    needed = ".".join(map(str, OLDEST_GO))
    if shutil.which(GO) is None:
        raise BuildError(f"Go isn't installed; the control plane needs Go {needed} or newer")
    answer = subprocess.run([GO, "env", "GOVERSION", "GOOS", "GOARCH"], env=environment(), check=True, capture_output=True, text=True)
    release, system, architecture = answer.stdout.split("\n")[:3]
    numbers = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    if numbers < OLDEST_GO:
        raise BuildError(f"{release} is installed; the control plane needs Go {needed} or newer")
    return release, system, architecture


def environment() -> dict[str, str]:
    """Build static binaries with the Go that is installed; a toolchain from the network would change the key of the cache."""
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false -trimpath"}


def module_folder(program: Program) -> Path:
    """Return the unpacked module that holds the program, with its `config` tree of manifests."""
    download(program)
    template = "{{with .Module}}{{with .Replace}}{{.Dir}}{{else}}{{.Dir}}{{end}}{{end}}"
    found = subprocess.run(
        [GO, "list", "-f", template, program.package], cwd=program.folder, env=environment(), check=True, capture_output=True, text=True
    )
    return Path(found.stdout.strip())


def download(program: Program) -> None:
    """Fetch the sources of everything that the program compiles. A proxy's passing error is tried again."""
    for attempt in range(1, DOWNLOAD_ATTEMPTS + 1):
        listing = [GO, "list", "-deps", program.package]
        found = subprocess.run(listing, cwd=program.folder, env=environment(), check=False, capture_output=True, text=True)
        if found.returncode == 0:
            return
        if attempt < DOWNLOAD_ATTEMPTS:
            time.sleep(5 * attempt)
    raise BuildError(
        f"could not fetch the sources of {program.name} {program.version} in {DOWNLOAD_ATTEMPTS} tries:\n{found.stderr.strip()}"
    )


def build(program: Program) -> Path:
    """Return the program's binary, compiling it if this machine has none of its kind. Builders at the same time wait for each other."""
    if program.binary.exists():
        return program.binary
    program.binary.parent.mkdir(parents=True, exist_ok=True)
    with (program.binary.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.binary.exists():
            return program.binary
        download(program)
        unfinished = program.binary.with_suffix(".unfinished")
        command = [GO, "build", "-ldflags", program.linker_flags, "-o", str(unfinished), main_package(program)]
        compiled = subprocess.run(command, cwd=program.folder, env=environment(), check=False, capture_output=True, text=True)
        if compiled.returncode != 0:
            raise BuildError(f"could not compile {program.name} {program.version}:\n{compiled.stderr.strip()}")
        unfinished.rename(program.binary)
    return program.binary


def main_package(program: Program) -> str:
    """Return what to build: the released package, or, of Kueue, its one file with the other path of certificates in it."""
    if program.name != "kueue":
        return program.package
    source = module_folder(program) / "cmd" / "kueue" / "main.go"
    text = source.read_text()
    if text.count(KUEUE_METRICS) != 1:
        raise BuildError(f"{source} has {KUEUE_METRICS} {text.count(KUEUE_METRICS)} times; it is replaced where it occurs once")
    copy = program.binary.parent / "main.go"
    copy.write_text(text.replace(KUEUE_METRICS, f'"{KUEUE_CERTIFICATES}"'))
    return str(copy)


def main() -> int:
    for program in PROGRAMS:
        started = time.monotonic()
        cached = program.binary.exists()
        try:
            binary = build(program)
        except BuildError as error:
            print(error, file=sys.stderr)
            return 1
        took = "cached" if cached else f"built in {time.monotonic() - started:.0f} s"
        print(f"{program.name} {program.version}: {took}, {binary.stat().st_size >> 20} MiB", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
