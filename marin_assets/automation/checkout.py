"""What git says about the experiments' checkout: which commit publishes, and why a file says what it says."""

import re
import subprocess
from pathlib import Path

from marin_assets.place import PROJECT
from marin_core.mix.commit import CodeState

_TRAILER = re.compile(r"[A-Za-z-]+: .*<[^<>]*@[^<>]*>\s*")
"""`Signed-off-by: A Name <a@host>`: a message is published, addresses aren't."""


def code_state() -> CodeState:
    """The project's commit, and whether its tree has changes; zeros outside a checkout."""
    commit = _git(PROJECT, "rev-parse", "HEAD")
    return CodeState() if commit is None else CodeState(commit, bool(_git(PROJECT, "status", "--porcelain")))


def message_of_last_change(declared_at: str) -> str | None:
    """Message of the last git commit that changed the file of a declaration (`file:line`).

    None if it isn't in a checkout, or has changes that were not committed: then nobody has said why yet.
    """
    path = Path(declared_at.rpartition(":")[0])
    if not path.is_file() or _git(path.parent, "status", "--porcelain", "--", path.name) != "":
        return None
    message = _git(path.parent, "log", "-1", "--format=%B", "--", path.name)
    lines = [line for line in (message or "").splitlines() if not _TRAILER.fullmatch(line)]
    return "\n".join(lines).strip() or None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20, check=True)  # noqa: S607
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
