"""Images: what they are made from is pinned, nobody in them is root, and a job's image holds what jobs need and nothing of Dagster."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
FILES = PROJECT / "deploy" / "docker"
FINAL = ("job", "lab")
DIGEST = "a" * 64
BASE = f"python:3.12-slim@sha256:{DIGEST}"


def instructions() -> list[tuple[str, str]]:
    """Instruction and the rest of it, continued lines joined, in the order of the file."""
    lines = [line for line in (FILES / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(word, re.sub(r"\s+", " ", rest.strip())) for word, _, rest in (line.partition(" ") for line in joined)]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Name → instructions, the FROM first."""
    found: dict[str, list[tuple[str, str]]] = {"": []}
    name = ""
    for word, rest in instructions():
        if word == "FROM":
            name = rest.partition(" AS ")[2]
            assert name, rest
            assert name not in found, rest
            found[name] = []
        found[name].append((word, rest))
    return found


def values(name: str, word: str) -> list[str]:
    return [rest for found, rest in stages()[name] if found == word]


def test_every_image_comes_from_the_one_base_that_is_given_by_digest() -> None:
    assert values("", "ARG") == ["BASE", "DEVICE=cpu"], "BASE has no default: it could only be one that changes"
    origins = {name: values(name, "FROM")[0].partition(" AS ")[0] for name in stages() if name}
    known = ["${BASE}"]
    for name, origin in origins.items():
        assert origin in known or origin == "${DEVICE}", name
        known.append(name)
    assert set(FINAL) <= set(origins)
    assert {"cpu", "cuda", "tpu"} <= set(origins)
    mounted = re.findall(r"from=(\w+)", (FILES / "Dockerfile").read_text())
    assert set(mounted) <= set(origins), "what is copied from elsewhere is an image too"


@pytest.mark.parametrize("name", FINAL)
def test_nobody_is_root(name: str) -> None:
    words = [word for word, _ in stages()[name]]
    assert values(name, "USER") == ["10001:10001"], "a number: Kubernetes can't judge a name"
    assert words[-1] == "USER"
    (made,) = [rest for word, rest in stages()["jobs"] if word == "RUN" and "useradd" in rest]
    assert "--uid 10001" in made
    assert "nologin" in made


def test_packages_are_installed_by_their_hashes_only() -> None:
    text = (FILES / "Dockerfile").read_text()
    for run in re.findall(r"pip install[^\n&]*", text):
        assert "--require-hashes" in run, run
    assert "--require-hashes" in (FILES / "install").read_text()
    assert not re.search(r"curl|wget|git clone|ADD ", text)


def test_there_is_no_secret_and_no_address() -> None:
    for path in [*FILES.glob("*.lock"), *(FILES / name for name in ("Dockerfile", "install", "build", "code-digest"))]:
        assert not re.search(r"https?://|--index-url|--extra-index", path.read_text()), path.name
    names = [rest.partition("=")[0] for name in stages() for word, rest in stages()[name] if word in ("ARG", "ENV")]
    assert not [name for name in names if re.search(r"KEY|TOKEN|PASSWORD|SECRET|CREDENTIAL", name)]
    kept = [rest for name in stages() for word, rest in stages()[name] if word in ("COPY", "ADD") and "/etc/" in rest]
    assert kept == [], "settings of a mirror come as secrets of the build, of which nothing stays"


@pytest.mark.parametrize("name", FINAL)
def test_the_code_is_named_by_its_digest(name: str) -> None:
    assert 'org.marin.code.digest="${CODE_DIGEST}"' in values(name, "LABEL")
    assert any('code-digest --is "${CODE_DIGEST}" marin_core marin_jobs' in run for run in values(name, "RUN")), (
        "a label can't say what isn't so"
    )
    copied = [rest.split()[0] for rest in values(name, "COPY")]
    assert copied == ["marin_core", "marin_jobs", *(["marin_assets"] if name == "lab" else [])]


def test_only_what_is_copied_is_given_to_the_builder() -> None:
    lines = [line for line in (FILES / "Dockerfile.dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    given = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {source for name in stages() for rest in values(name, "COPY") if "--from" not in rest for source in rest.split()[:-1]}
    assert all(any(Path(source).is_relative_to(each) for each in given) for source in copied)
    assert given == {".ci/uv.lock", "deploy/docker", "marin_core", "marin_jobs", "marin_assets"}


def pins(path: Path) -> dict[str, str]:
    """Package → version; every line of a lock is a pin, a hash of it, or nothing."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", path.read_text().strip()):
        match = re.match(r"([a-z0-9-]+)(?:\[[^]]*\])?==(\S+)", entry)
        assert match, f"{path.name}: {entry[:80]}"
        assert "--hash=sha256:" in entry, match[1]
        found[match[1]] = match[2]
    return found


LOCKS = {path.stem: pins(path) for path in sorted(FILES.glob("*.lock"))}


def normal(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~ ;]", requirement)[0]).lower()


def test_locks_hold_what_the_project_asks_for() -> None:
    """`make lock` writes them."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(LOCKS) == {"jobs", "cuda", "tpu", "lab"}
    assert {normal(each) for each in [*project["dependencies"], *extras["fast"]]} <= set(LOCKS["jobs"])
    assert {normal(each) for each in extras["lab"]} <= {*LOCKS["jobs"], *LOCKS["lab"]}
    assert {"jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-nccl-cu13"} <= set(LOCKS["cuda"])
    assert set(LOCKS["tpu"]) == {"libtpu"}
    jax = LOCKS["jobs"]["jax"]
    assert LOCKS["cuda"]["jax-cuda13-plugin"] == LOCKS["cuda"]["jax-cuda13-pjrt"] == LOCKS["jobs"]["jaxlib"] == jax


def test_images_hold_the_versions_that_the_tests_ran_with() -> None:
    tested = pins(PROJECT / "requirements.lock")
    for name in ("jobs", "lab"):
        assert {package: version for package, version in LOCKS[name].items() if tested.get(package) != version} == {}
    for name in ("cuda", "tpu", "lab"):
        assert not set(LOCKS[name]) & set(LOCKS["jobs"]), "what jobs need lies in the layers that all images share"


def test_jobs_come_without_dagster_and_without_the_tools_of_development() -> None:
    jobs = set(LOCKS["jobs"]) | set(LOCKS["cuda"]) | set(LOCKS["tpu"])
    assert {package for package in jobs if package.startswith("dagster")} == {"dagster-pipes"}
    assert not jobs & {"kubernetes", "sqlalchemy", "graphene", "starlette"}
    assert not (jobs | set(LOCKS["lab"])) & {"pytest", "mypy", "ruff", "hypothesis", "playwright"}


def imported(folder: str) -> Iterator[str]:
    """Top-level names that a package of ours imports from elsewhere."""
    for path in (PROJECT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (each.name.split(".")[0] for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.split(".")[0]


@pytest.mark.parametrize(("folders", "locks"), [(("marin_core", "marin_jobs"), ("jobs",)), (("marin_assets",), ("jobs", "lab"))])
def test_whatever_the_code_imports_is_in_its_image(folders: tuple[str, ...], locks: tuple[str, ...]) -> None:
    ours = {"marin_core", "marin_jobs", "marin_assets"}
    names = {name for folder in folders for name in imported(folder)} - ours - set(sys.stdlib_module_names)
    there = set().union(*(LOCKS[lock] for lock in locks))
    distributions = packages_distributions()
    missing = {name for name in names if not {normal(each) for each in distributions.get(name, [])} & there}
    assert missing == set()


def build(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`deploy/docker/build` with a builder that only says what it was told."""
    environment = {"PATH": os.environ["PATH"], "BUILDER": "printf %s\\n", "HOME": "/"}
    return subprocess.run([FILES / "build", *arguments], capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("base", ["python:3.12-slim", "python:latest", f"python@sha256:{DIGEST[1:]}", f"python@sha256:{DIGEST}0", ""])
def test_a_base_without_a_digest_is_refused(base: str) -> None:
    done = build("cpu", base, "marin/cpu")
    assert done.returncode == 64
    assert "is not pinned" in done.stderr
    assert done.stdout == ""


def test_an_unknown_image_is_refused() -> None:
    done = build("gpu", BASE, "marin/gpu")
    assert done.returncode == 64
    assert "cpu|cuda|tpu|lab" in done.stderr


@pytest.mark.parametrize(("kind", "target"), [("cpu", "job"), ("cuda", "job"), ("tpu", "job"), ("lab", "lab")])
def test_the_builder_is_told_everything(kind: str, target: str) -> None:
    done = build(kind, BASE, "marin/image", "--platform", "linux/arm64")
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told[told.index("--target") + 1] == target
    assert (f"DEVICE={kind}" in told) == (target == "job")
    assert f"BASE={BASE}" in told
    assert told[told.index("--platform") + 1] == "linux/arm64"
    assert told[-1] == "."
    digest = subprocess.run(
        [FILES / "code-digest", "marin_core", "marin_jobs"], cwd=PROJECT, capture_output=True, text=True, check=True
    ).stdout
    assert f"CODE_DIGEST={digest.strip()}" in told


def code_digest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FILES / "code-digest", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_the_code_digest_is_of_paths_and_bytes(tmp_path: Path) -> None:
    source = tmp_path / "code"
    source.mkdir()
    (source / "a b.py").write_text("one")
    (source / "c.py").write_text("two")
    seen = [code_digest(tmp_path, "code").stdout]
    assert re.fullmatch(r"[0-9a-f]{64}\n", seen[0])
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "c.pyc").write_text("compiled")
    (source / "d.pyc").write_text("compiled")
    assert code_digest(tmp_path, "code").stdout == seen[0]
    (source / "c.py").write_text("three")
    seen.append(code_digest(tmp_path, "code").stdout)
    (source / "c.py").rename(source / "d.py")
    seen.append(code_digest(tmp_path, "code").stdout)
    assert len(set(seen)) == 3
    assert code_digest(tmp_path, "--is", seen[2].strip(), "code").returncode == 0
    other = code_digest(tmp_path, "--is", seen[0].strip(), "code")
    assert other.returncode == 65
    assert seen[2].strip() in other.stderr
    assert code_digest(tmp_path, "cade").returncode == 64
    assert code_digest(tmp_path, "--is", "", "code").returncode != 0, "an image without the argument isn't built"
