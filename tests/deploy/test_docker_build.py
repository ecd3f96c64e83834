"""The image of jobs, built for real where there is buildah, from a base that is made here, since no registry is at hand. Takes minutes."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
PACKAGES = (
    "ca-certificates",
    "libbz2-1.0",
    "libffi8",
    "liblzma5",
    "libncursesw6",
    "libreadline8",
    "libsqlite3-0",
    "libssl3",
    "libuuid1",
    "zlib1g",
)
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
"""Of this machine: packages may come through a mirror that has an authority of its own."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("buildah") is None, reason="no buildah here"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="no debootstrap here, which makes the base"),
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root"),
]


class Builder:
    """buildah with a storage of its own."""

    def __init__(self, folder: Path) -> None:
        self.command = ["buildah", "--root", f"{folder}/storage", "--runroot", f"{folder}/run"]

    def __call__(self, *arguments: str) -> str:
        return subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=True).stdout.strip()

    def run(self, container: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        given = [*self.command, "run", "--isolation", "chroot", container, "--", *command]
        return subprocess.run(given, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    folder = tmp_path_factory.mktemp("buildah")
    builder = Builder(folder)
    yield builder
    builder("rm", "--all")
    builder("rmi", "--all", "--force")  # what it mounted goes with them; the folder's other files are pytest's to remove


@pytest.fixture(scope="module")
def base(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian, and the Python that runs this test; by its digest."""
    root = tmp_path_factory.mktemp("base") / "root"
    bootstrap = [str(shutil.which("debootstrap")), "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
    subprocess.run(bootstrap, check=True, capture_output=True)
    here, there = Path(sys.base_prefix), root / "usr" / "local"
    version = f"python{sysconfig.get_python_version()}"
    shutil.copy2(here / "bin" / version, there / "bin" / version)
    for name in ("python3", "python"):
        (there / "bin" / name).symlink_to(version)
    left_out = shutil.ignore_patterns("__pycache__", "test", "site-packages")
    shutil.copytree(here / "lib" / version, there / "lib" / version, symlinks=True, ignore=left_out)
    shutil.copytree(here / "lib" / version / "site-packages" / "pip", there / "lib" / version / "site-packages" / "pip")
    for library in (here / "lib").glob("libpython*"):
        shutil.copy2(library, there / "lib" / library.name, follow_symlinks=False)
    shutil.copy2(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)
    container = builder("from", "scratch")
    builder("add", "-q", container, f"{root}/", "/")
    builder("config", "--env", "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", container)
    builder("commit", "-q", "--rm", container, "localhost/python")
    shutil.rmtree(root)
    return "localhost/python@" + builder("images", "--format", "{{.Digest}}", "--digests", "localhost/python")


@pytest.fixture(scope="module")
def image(builder: Builder, base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    settings = tmp_path_factory.mktemp("settings") / "uv.toml"
    settings.write_text("system-certs = true\n")
    environment = {**os.environ, "BUILDER": " ".join([*builder.command, "build", "--isolation", "chroot", "--layers"])}
    command = [str(PROJECT / "deploy" / "docker" / "build"), "cpu", base, "localhost/job", "--secret", f"id=uv,src={settings}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return "localhost/job"


@pytest.fixture(scope="module")
def container(builder: Builder, image: str) -> str:
    return builder("from", "--pull-never", image)


@pytest.mark.timeout(3600)
def test_labels_and_user_are_what_the_cluster_relies_on(builder: Builder, base: str, image: str) -> None:
    config = json.loads(builder("inspect", "--type", "image", image))["OCIv1"]["config"]
    script = PROJECT / "deploy" / "docker" / "code-digest"
    digest = subprocess.run([script, "marin_core", "marin_jobs"], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert config["User"] == "10001:10001"
    assert config["Labels"]["org.marin.code.digest"] == digest.stdout.strip()
    assert base.endswith(config["Labels"]["org.opencontainers.image.base.digest"])


def test_a_job_starts_in_it_as_somebody_who_owns_nothing(builder: Builder, container: str) -> None:
    done = builder.run(container, ["python", "-m", "marin_jobs", "file:///nowhere/spec.json"])
    assert done.returncode in (64, 65, 75), done.stderr  # an answer of ours: it started, and found no spec
    script = "import os, jax; assert os.getuid() == 10001; print(jax.numpy.arange(4).sum())"
    done = builder.run(container, ["python", "-c", script])
    assert done.stdout.strip() == "6", done.stderr
    done = builder.run(container, ["sh", "-c", "find / -xdev -user 10001 -not -path '/proc/*' | head"])
    assert done.stdout == "", "it could change what it runs"


def test_it_holds_nothing_of_dagster_or_the_installer(builder: Builder, container: str) -> None:
    names = ("dagster", "marin_assets", "kubernetes", "sqlalchemy", "pytest", "pip")
    script = f"import importlib.util as found; print([name for name in {names} if found.find_spec(name)])"
    assert builder.run(container, ["python", "-c", script]).stdout.strip() == "[]"
    assert builder.run(container, ["sh", "-c", "ls -d /installer/* /locks/* /etc/uv/* /etc/pip.conf 2> /dev/null"]).stdout == ""
