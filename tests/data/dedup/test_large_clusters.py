"""One cluster of a million documents: linear in time and memory, and one keeper (spec: data §10, row 33)."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from marin_core.data.normal_form import document_id
from tests.data.dedup.conftest import document, words, write_shards

SHARD_DOCUMENTS = 50_000
SCRIPT = """
import json, resource, sys
from pathlib import Path
from marin_core.data.dedup.config import DuplicatesConfig, NearDuplicates
from marin_core.data.dedup.corpus import Family, ShardFolders
from marin_core.data.dedup.duplicates import find_duplicates
from marin_core.data.dedup.signatures import write_signatures
from marin_core.report import SilentReporter

documents, output = Path(sys.argv[1]), Path(sys.argv[2])
shards = []
for folder in sorted(documents.iterdir()):
    signatures = output / "signatures" / folder.name
    write_signatures(NearDuplicates(), folder, signatures, SilentReporter())
    shards.append(ShardFolders(folder.name, folder, signatures))
(output / "found").mkdir()
report = find_duplicates(DuplicatesConfig(find="near_duplicates"), [Family("a", tuple(shards))], output / "found", SilentReporter())
usage = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss, in which a child begins with what its parent had.
peak = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")) * 1024
largest = report.tables["largest_clusters"][0]
print(json.dumps({"peak_bytes": peak, "cpu_seconds": usage.ru_utime + usage.ru_stime, **report.metrics, **largest}))
"""


@pytest.mark.parametrize(
    "documents",
    [pytest.param(200_000, marks=pytest.mark.slow), pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])],
)
def test_a_huge_cluster_has_one_keeper_and_takes_linear_memory(tmp_path: Path, documents: int) -> None:
    base = " ".join(words(np.random.default_rng(0), 40))
    keeper = document_id("")
    longest = 0
    for first in range(0, documents, SHARD_DOCUMENTS):
        shard = [document(f"{base} {index:x}") for index in range(first, first + SHARD_DOCUMENTS)]
        (folder,) = write_shards(tmp_path / "made", [shard])
        (tmp_path / "documents").mkdir(exist_ok=True)
        folder.rename(tmp_path / "documents" / f"{first:07d}")
        for each in shard:
            if (-len(each.text), each.id) < (-longest, keeper):
                longest, keeper = len(each.text), each.id
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "documents"), str(tmp_path / "output")]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{documents} documents: {told['cpu_seconds']:.0f} CPU-s, {told['peak_bytes'] / 2**20:.0f} MiB")
    assert (told["clusters"], told["largest_cluster"], told["losers"]) == (1, documents, documents - 1)
    assert told["keeper"] == keeper
    assert told["verified_losers"] == documents - 1
    assert told["peak_bytes"] < 400 * 2**20 + 600 * documents
