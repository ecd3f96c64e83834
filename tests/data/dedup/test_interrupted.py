"""Killed at any batch or pass, a job that starts again makes the same bytes."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from marin_core.data.dedup.config import DuplicatesConfig, NearDuplicates
from marin_core.data.dedup.duplicates import find_duplicates
from marin_core.data.dedup.signatures import write_signatures
from marin_core.report import SilentReporter
from tests.data.dedup.conftest import document, family

SCRIPT = """
import os, signal, sys
from pathlib import Path
from marin_core.data.dedup.config import DuplicatesConfig, NearDuplicates
from marin_core.data.dedup.corpus import Family, ShardFolders
from marin_core.data.dedup.duplicates import find_duplicates
from marin_core.data.dedup.signatures import write_signatures
from marin_core.report import SilentReporter

class Killer(SilentReporter):
    left = int(sys.argv[1])
    def progress(self, done, total, unit):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

job, documents, output = sys.argv[2], Path(sys.argv[3]), Path(sys.argv[5])
output.mkdir(parents=True, exist_ok=True)
if job == "signatures":
    write_signatures(NearDuplicates(), documents, output, Killer())
else:
    shards = (ShardFolders("00000", documents, Path(sys.argv[4])),)
    find_duplicates(DuplicatesConfig(find="near_duplicates"), [Family("a", shards)], output, Killer(), rows_at_once=60)
assert "jax" not in sys.modules and "datatrove" not in sys.modules
"""


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("job", "step"), [("signatures", 2), ("duplicates", 14)])
def test_a_killed_job_starts_again_and_makes_the_same_bytes(tmp_path: Path, job: str, step: int) -> None:
    texts = [f"{index % 90} " * 8_000 + f"a b c d e f {index}" for index in range(100)]
    made = family(tmp_path, "a", [[document(text) for text in texts]], NearDuplicates())
    documents, signatures = made.shards[0].documents, made.shards[0].signatures
    outputs = []
    for killed_at in (step, 0):
        output = tmp_path / f"{job}-{killed_at}"
        command = [sys.executable, "-c", SCRIPT, str(killed_at), job, str(documents), str(signatures), str(output)]
        environment = {"PYTHONPATH": str(Path.cwd()), "PYTHONHASHSEED": str(killed_at)}
        ended = subprocess.run(command, check=False, env=environment).returncode
        assert ended == (-9 if killed_at else 0)
        if killed_at:
            assert not {"signatures.json", "summary.json"} & set(files(output))
            for path in sorted(output.rglob("*"), reverse=True):  # as the next attempt finds it
                path.rmdir() if path.is_dir() else path.unlink()
            if job == "signatures":
                write_signatures(NearDuplicates(), documents, output, SilentReporter())
            else:
                find_duplicates(DuplicatesConfig(find="near_duplicates"), [made], output, SilentReporter())
        outputs.append(files(output))
    assert outputs[0] == outputs[1]
    assert not any("scratch" in name for name in outputs[0])
