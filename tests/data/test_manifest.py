"""The manifest of a family: exact to the unit, and the one place where a missing shard is refused or let pass."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from marin_assets.builder import Builder, BuildError, QuietEvents
from marin_assets.factory import build_definitions
from marin_assets.launch import InlineLauncher
from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Record, Store
from marin_core.artifact.drift import DriftFinder
from marin_core.artifact.plan import needed
from marin_core.data.accounts import Accounts
from marin_core.data.documents import Document, Rejection, sample_of
from marin_core.data.manifest import Shard, parse_counts, read_shards, write_manifest
from marin_core.data.normal_form import document_id
from marin_core.data.shard import find_part, read_rejected, write_part
from marin_core.errors import ConfigError, DataError
from marin_core.experiment.documents import filtered
from marin_core.experiment.families import listed, manifest
from marin_core.experiment.jobs import ManifestJob
from marin_core.experiment.tokens import tokenized
from marin_core.report import Report
from tests.artifact.test_store import commit, record
from tests.data.conftest import sentences, write_jsonl

# Merging ------------------------------------------------------------------------------------------------------------------

REASONS = ("too_short", "repetition", "language")


def document(text: str) -> Document:
    return Document(document_id(text), text, "raw/a/text", None, None, "{}", len(text.encode()))


def shard(folder: Path, number: int, documents: int = 60) -> tuple[Shard, list[tuple[str, str, str]]]:
    """A shard whose accounts are kept by the stages' own class, and the fate, reason and text of each of its documents."""
    key = f"{number:05d}"
    output = folder / key
    output.mkdir()
    fates = []
    with Accounts("filter", output, f"part-{key}-of-00003") as accounts:
        kept = []
        for index in range(documents + number):
            text = f"Document {index} of shard {number} <b>says</b> a@example.org \x1b[31m{'word ' * (index % 7)}"
            if index % 4 == 0:
                reason = REASONS[index % 3]
                accounts.drop(document(text), reason)
                fates.append(("dropped", reason, text))
            elif index % 11 == 0:
                accounts.reject(Rejection("bad_json", "x", "units/a", index, 5, "0" * 16, "x"))
                fates.append(("rejected", "bad_json", ""))
            else:
                accounts.keep(document(text))
                kept.append(document(text))
                fates.append(("kept", "", text))
        accounts.notes["repaired_nul"] += number
        write_part(output / f"part-{key}-of-00003.parquet", kept, {"schema": "document/1"})
        accounts.write()
        tables = accounts.tables()
    tables = {name: [dict(row) for row in rows] for name, rows in tables.items()}
    made = record(ArtifactId("filtered/a", "v1", key)).model_copy(update={"tables": tables, "content_digest": f"{number:064x}"})
    return Shard(key, made, parse_counts((output / "counts.json").read_bytes(), key)), fates


def merged(folder: Path, shards: list[Shard], missing: tuple[str, ...] = ()) -> Report:
    output = folder / "manifest"
    output.mkdir(exist_ok=True)
    return write_manifest(shards, missing, output)


def test_reasons_and_samples_are_those_of_all_documents_together(tmp_path: Path) -> None:
    made = [shard(tmp_path, number) for number in range(3)]
    report = merged(tmp_path, [each for each, _ in made])
    every = [fate for _, fates in made for fate in fates]
    counts = Counter((fate, reason) for fate, reason, _ in every)
    sizes = Counter[tuple[str, str]]()
    for fate, reason, text in every:
        sizes[fate, reason] += len(text.encode()) if fate != "rejected" else 5
    rows = {(row["outcome"], row["reason"]): row for row in report.tables["reasons"]}
    assert {key: row["documents"] for key, row in rows.items()} == counts
    assert {key: row["bytes"] for key, row in rows.items()} == sizes
    assert {key: row["share"] for key, row in rows.items()} == {key: round(count / len(every), 6) for key, count in counts.items()}
    assert {key: row["share_of_bytes"] for key, row in rows.items()} == {key: round(n / sizes.total(), 6) for key, n in sizes.items()}
    assert [row["documents"] for row in report.tables["reasons"]] == sorted(counts.values(), reverse=True)

    for key in {key for key in counts if key[0] != "rejected"}:
        texts = sorted((document_id(text), text) for fate, reason, text in every if (fate, reason) == key)[:10]
        shown = [(row["id"], row["text"]) for row in report.tables["samples"] if (row["outcome"], row["reason"]) == key]
        assert shown == [(identity, sample_of(text)) for identity, text in texts]
    assert not any("\x1b" in str(row["text"]) or "example.org" in str(row["text"]) for row in report.tables["samples"])

    assert report.metrics["documents_in"] == len(every)
    assert report.metrics["kept"] == counts["kept", ""]
    assert report.metrics["notes/repaired_nul"] == 0 + 1 + 2
    assert {check.name: check.passed for check in report.checks} == {"all_shards": True, "counts_add_up": True}
    assert (tmp_path / "manifest" / "shares.png").read_bytes().startswith(b"\x89PNG")


def test_a_shard_that_does_not_add_up_is_named(tmp_path: Path) -> None:
    made = [shard(tmp_path, number)[0] for number in range(3)]
    counts = {**(made[1].counts or {})}
    counts["documents_in"] += 1
    made[1] = Shard(made[1].key, made[1].record, counts)
    (check,) = (check for check in merged(tmp_path, made).checks if check.name == "counts_add_up")
    assert not check.passed
    assert "shard 00001 has 62 documents in, and accounts for 61" in check.description


def test_counts_on_disk_and_the_record_must_agree(tmp_path: Path) -> None:
    made, _ = shard(tmp_path, 0)
    counts: dict[str, Any] = json.loads(json.dumps(made.counts))
    counts["dropped"]["too_short"] -= 1
    with pytest.raises(DataError, match=r"shard 00000: counts\.json and the record's table of reasons differ"):
        merged(tmp_path, [Shard(made.key, made.record, counts)])


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"documents_in": 1}', b'{"documents_in": -1, "bytes_in": 0, "kept": 0}'])
def test_broken_counts_name_the_shard(content: bytes) -> None:
    with pytest.raises(DataError, match=r"shard 00003: counts\.json is broken"):
        parse_counts(content, "00003")


def test_the_digest_is_about_content_and_not_about_where_it_was_built(tmp_path: Path) -> None:
    made, _ = shard(tmp_path, 0)
    other = made.record.model_copy(update={"attempt": 3, "metrics": {"linked_to": "filtered/a@v0/00000"}})
    one = merged(tmp_path, [made]).content_digest
    assert one == merged(tmp_path, [Shard(made.key, other, made.counts)]).content_digest
    changed = made.record.model_copy(update={"content_digest": "f" * 64})
    assert one != merged(tmp_path, [Shard(made.key, changed, made.counts)]).content_digest
    assert one != merged(tmp_path, [made], missing=("00001",)).content_digest


# As an artifact -----------------------------------------------------------------------------------------------------------


class Lab:
    """A family of four shards, the second of which is made from a file that is cut."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(f"file://{folder}/store")
        self.folder = folder
        for number in range(4):
            write_jsonl(folder / "files" / f"{number}.jsonl.gz", sentences(30, number))
        self.bad = folder / "files" / "1.jsonl.gz"
        self.whole = self.bad.read_bytes()
        self.bad.write_bytes(self.whole[: len(self.whole) // 2])
        raw = lab.raw_source("raw/words", "v1", lab.LocalFiles(root=str(folder / "files")), license="CC0-1.0")
        self.family = filtered("filtered/words", "v1", raw, shards=4, filters=[lab.MinCharacters(characters=100)])
        self.raw = raw

    def build(self, *steps: ArtifactStep) -> dict[str, BuildError]:
        """Build everything; what fails, by artifact."""
        graph = ArtifactGraph(steps)
        launcher = InlineLauncher(self.folder / "store" / ".jobs")
        builder = Builder(graph=graph, store=self.store, target=self.store, launcher=launcher, events=QuietEvents())
        failed = {}
        for step in steps:
            for artifact in step.ids():
                try:
                    builder.build(graph[step.id], artifact)
                except BuildError as error:
                    failed[str(artifact)] = error
        return failed

    def record_of_attempt(self, step: ArtifactStep) -> Record:
        """What was committed and is not any more."""
        end = self.store.attempts(step.id)[-1].end
        assert end is not None
        assert end.record is not None
        return end.record

    def record(self, step: ArtifactStep) -> Record:
        found = self.store.record(step.id)
        assert found is not None
        return found


@pytest.fixture
def world(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_one_bad_shard_fails_alone_and_the_manifest_names_it_unless_it_may_be_missing(world: Lab) -> None:
    failed = world.build(world.raw, world.family)
    assert list(failed) == ["filtered/words@v1/00001"]
    assert failed["filtered/words@v1/00001"].job_exit_code == 65
    whole = manifest("manifests/words", "v1", world.family)
    with pytest.raises(ConfigError, match=r"needs 1 artifacts(.|\n)*filtered/words@v1/00001 \(attempt 1: DataError: unit .*1\.jsonl\.gz"):
        world.build(whole)

    partial = manifest("manifests/words", "v2", world.family, allow_missing_shards=["00001"])
    assert world.build(partial) == {}
    made = world.record(partial)
    checks = {check.name: (check.passed, check.description) for check in made.checks}
    assert checks["all_shards"] == (False, "1 of 4 shards are missing: 00001")
    assert checks["counts_add_up"][0]
    folder = world.store.payload_path(made)
    assert folder is not None
    shards = read_shards(folder)
    assert list(shards) == ["00000", "00002", "00003"]
    assert shards["00002"]["units"] == ["units/documents/2.jsonl.gz"]
    assert shards["00002"]["address"] == "filtered/words/v1/00002"
    assert world.folder.as_posix() not in (folder / "shards.json").read_text()
    graph = ArtifactGraph([whole])
    assert graph.fingerprint(whole) != ArtifactGraph([partial]).fingerprint(partial)


def test_counts_of_a_manifest_are_those_of_the_files(world: Lab) -> None:
    world.bad.write_bytes(world.whole)
    whole = manifest("manifests/words", "v1", world.family)
    assert world.build(world.raw, world.family, whole) == {}
    kept = dropped = rejected = 0
    for artifact in world.family.ids():
        made = world.store.record(artifact)
        assert made is not None
        folder = world.store.payload_path(made)
        assert folder is not None
        kept += pq.read_metadata(find_part(folder)).num_rows
        dropped += sum(pq.read_metadata(path).num_rows for path in (folder / "dropped").iterdir())
        rejected += sum(len(read_rejected(path)) for path in (folder / "rejected").iterdir())
    rows = Counter[str]()
    for row in world.record(whole).tables["reasons"]:
        rows[str(row["outcome"])] += int(row["documents"])
    assert (rows["kept"], rows["dropped"], rows["rejected"]) == (kept, dropped, rejected)
    assert world.record(whole).metrics["documents_in"] == kept + dropped + rejected == 120
    assert dropped > 0


def test_what_may_be_missing_is_left_out_for_good(world: Lab) -> None:
    """Else one identity would have two contents."""
    world.build(world.raw, world.family)
    partial = manifest("manifests/words", "v1", world.family, allow_missing_shards=["00001"])
    world.build(partial)
    made = world.store.record(ArtifactId("filtered/words", "v1", "00002"))
    assert made is not None
    commit(world.store, made.model_copy(update={"partition": "00001"}))
    assert DriftFinder(ArtifactGraph([partial]), world.store).of(partial.id) == ()
    world.store.forget(partial.id)
    before = world.record_of_attempt(partial)
    assert world.build(partial) == {}
    assert world.record(partial).content_digest == before.content_digest


def test_a_consumer_of_a_manifest_reads_what_it_lists_and_follows_its_changes(world: Lab) -> None:
    world.build(world.raw, world.family)
    partial = manifest("manifests/words", "v1", world.family, allow_missing_shards=["00001"])
    whole = lab.tokenizer("tokenizer/words", "v1", [world.family], vocab_size=300)
    bpe = listed(whole, partial)
    assert world.build(partial, bpe) == {}
    reads = {str(read.id) for read in world.record(bpe).inputs}
    assert reads == {"manifests/words@v1", *(f"filtered/words@v1/0000{index}" for index in (0, 2, 3))}
    assert ArtifactGraph([bpe]).fingerprint(bpe) != ArtifactGraph([whole]).fingerprint(whole)
    assert DriftFinder(ArtifactGraph([bpe]), world.store).of(bpe.id) == ()

    defs = build_definitions([lab.experiment("listed", bpe, question="?", hypothesis="!")])
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    mappings = {dep.asset_key.to_user_string(): dep.partition_mapping for dep in specs["tokenizer/words-v1"].deps}
    assert mappings["filtered/words-v1"] == dg.SpecificPartitionsPartitionMapping(["00000", "00002", "00003"])
    assert mappings["manifests/words-v1"] is None

    alike = tokenized("tokenized/words", "v1", world.family, bpe)
    with pytest.raises(ConfigError, match="doesn't read all shards of filtered/words@v1"):
        listed(alike, partial)


def test_what_may_be_missing_is_not_built_for_the_manifest(world: Lab) -> None:
    partial = manifest("manifests/words", "v1", world.family, allow_missing_shards=["00001"])
    wanted = {str(artifact) for artifact in needed(ArtifactGraph([partial]), [partial.id])}
    assert wanted == {"raw/words@v1", "manifests/words@v1", *(f"filtered/words@v1/0000{index}" for index in (0, 2, 3))}


def test_a_manifest_of_a_token_cache_lists_its_parts_and_sums_their_tokens(world: Lab) -> None:
    world.bad.write_bytes(world.whole)
    bpe = lab.tokenizer("tokenizer/words", "v1", [world.family], vocab_size=300)
    tokens = tokenized("tokenized/words", "v1", world.family, bpe)
    whole = manifest("manifests/tokens", "v1", tokens)
    assert world.build(world.raw, world.family, bpe, tokens, whole) == {}
    parts = [world.store.record(artifact) for artifact in tokens.ids()]
    made = world.record(whole)
    assert made.metrics["tokens"] == sum(int(part.metrics["tokens"]) for part in parts if part)
    assert {read.id.family for read in made.inputs} == {tokens.id, world.raw.id}
    folder = world.store.payload_path(made)
    assert folder is not None
    assert read_shards(folder)["00003"]["units"] == ["units/documents/3.jsonl.gz"]
    assert [check.name for check in made.checks] == ["all_shards"]


def test_units_are_followed_through_stages_that_work_shard_by_shard(world: Lab) -> None:
    texts = lab.documents("documents/words", "v1", world.raw, shards=4)
    lengths = lab.attributes("attributes/words", "v1", texts, [lab.LengthMeasure()])
    kept = lab.consolidated("filtered/kept", "v1", texts, attributes=[lengths], rules=[lab.MinCharacters(characters=40)])
    for family in (texts, lengths, kept):
        made = manifest("manifests/words", "v1", family)
        config = made.symbolic_config
        assert isinstance(config, ManifestJob)
        assert (config.sources, config.counted) == (("artifact:raw/words@v1",), family is not lengths)
        assert config.cut is not None
        assert config.cut.shards == 4
        assert made.deps == (family, world.raw)


def test_a_shard_that_the_family_does_not_have_is_refused(world: Lab) -> None:
    with pytest.raises(ConfigError, match="has no shard '00009', which 'allow_missing_shards' names"):
        manifest("manifests/words", "v1", world.family, allow_missing_shards=["00009"])
    with pytest.raises(ConfigError, match="raw/words@v1 is no family of shards"):
        manifest("manifests/words", "v1", world.raw)


@pytest.mark.parametrize("content", ["{}", "[", '{"schema": "shards/9", "shards": []}'])
def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "shards.json").write_text(content)
    with pytest.raises(DataError, match="not a readable manifest"):
        read_shards(tmp_path)
