"""The catalogue's declarations, read by the real code from a server of this machine that has files of the same names, kinds and fields."""

import bz2
import gzip
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from marin_assets import catalog
from marin_assets.catalog import CatalogSource
from marin_core.data.filter import filter_shard
from marin_core.data.ingest import ingest
from marin_core.data.sources.config import HttpFiles, HubFiles, IngestConfig
from marin_core.data.stages import FilterConfig
from marin_core.data.units import read_units
from marin_core.errors import ConfigError
from marin_core.experiment.jobs import IngestJob
from marin_core.report import SilentReporter
from tests.data.sources.hub import Hub, Repository
from tests.data.sources.web import Handler, Request

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
VERSION = "v1"


def texts(name: str) -> list[str]:
    return [f"{name} number {index} has a text of its own, with ünïcödé in it." for index in range(3)]


def jsonl(name: str, field: str = "text", **others: object) -> bytes:
    lines = [json.dumps({"id": f"{name}/{index}", field: text, **others}) for index, text in enumerate(texts(name))]
    return ("\n".join(lines) + "\n").encode()


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def parquet(name: str, column: str = "text", **others: object) -> bytes:
    rows = texts(name)
    table = {column: rows} | {key: [value] * len(rows) for key, value in others.items()}
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink)
    return sink.getvalue()


WIKI = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="en">
<siteinfo><dbname>enwiki</dbname></siteinfo>
<page><title>Mercury</title><ns>0</ns><id>1</id><revision><id>11</id><timestamp>2026-01-01T00:00:00Z</timestamp>
<text xml:space="preserve">'''Mercury''' is the first [[planet]] of the Sun and has no moon.</text></revision></page>
</mediawiki>"""

HUB = {
    "HuggingFaceFW/fineweb": {
        "README.md": b"#",
        "data/CC-MAIN-2024-10/000_00000.parquet": parquet("fineweb", id="u", url="https://a.org", language="en", token_count=9),
        "sample/10BT/000_00000.parquet": parquet("sample", id="u", url="https://a.org", language="en"),
    },
    "HuggingFaceFW/fineweb-edu": {
        "data/CC-MAIN-2024-10/train-00000-of-00014.parquet": parquet("edu", id="u", url="https://a.org", language="en", score=3.1),
    },
    "mlfoundations/dclm-baseline-1.0": {
        "global-shard_01_of_10/local-shard_0_of_10/shard_00000000_processed.jsonl.zst": zst(jsonl("dclm", url="https://a.org")),
        "global-shard_02_of_10/local-shard_9_of_10/shard_00000001_processed.jsonl.zst": zst(jsonl("dclm2", url="https://b.org")),
    },
    "bigcode/starcoderdata": {
        "python/train-00000-of-00059.parquet": parquet(
            "code", "content", id="7", max_stars_repo_path="a/b.py", max_stars_repo_name="c/d", max_stars_count=1
        ),
        "ada/train-00000-of-00001.parquet": parquet("ada", "content", id="8", max_stars_repo_path="x.adb", max_stars_repo_name="e/f"),
    },
    "EleutherAI/proof-pile-2": {
        f"{subset}/{split}/{name}": zst(jsonl(f"{subset}{split}", meta={"url": "x"}))
        for subset, name in (("arxiv", "arXiv_000.jsonl.zst"), ("open-web-math", "a.jsonl.zst"), ("algebraic-stack", "agda0000.jsonl.zst"))
        for split in ("train", "test", "validation")
    },
    "allenai/peS2o": {
        "data/v2/train-00000-of-00020.json.gz": gzip.compress(jsonl("pes2o", added="2023-01-03T00:00:00Z", source="s2orc/train")),
        "data/v2/validation-00000-of-00002.json.gz": gzip.compress(jsonl("held out")),
    },
    "roneneldan/TinyStories": {
        "data/train-00000-of-00004-2d5a1467fff1081b.parquet": parquet("story"),
        "data/validation-00000-of-00001-869c898b519ad725.parquet": parquet("held out"),
        "TinyStoriesV2-GPT4-train.txt": b"Once upon a time",
    },
    "wikimedia/wikipedia": {
        "20231101.en/train-00000-of-00041.parquet": parquet("article", id="1", url="https://en.wikipedia.org/wiki/A", title="A"),
        "20231101.de/train-00000-of-00020.parquet": parquet("artikel", id="2", url="https://de.wikipedia.org/wiki/B", title="B"),
    },
}
CC = "contrib/Nemotron/Nemotron-CC/data-jsonl"
NEMOTRON = {
    f"{CC}/quality={quality}/kind={kind}/kind2={kind}/CC-MAIN-2013-20-part-00000.jsonl.zstd": zst(
        jsonl(f"{quality} {kind}", warc_record_id=f"{quality}/{kind}", url="https://a.org", language="eng")
    )
    for quality, kind in (
        ("high", "actual"), ("high", "synthetic"), ("medium-high", "actual"), ("medium", "actual"), ("medium-low", "actual"),
        ("low", "actual"), ("low", "synthetic"),
    )
}  # fmt: skip
DOLMA = {
    "dolma-v1_7/wiki/wiki-0000.json.gz": gzip.compress(jsonl("dolma wiki", source="wiki")),
    "dolma-v1_7/books/books-0000.json.gz": gzip.compress(jsonl("dolma books", source="books")),
}
WEB = {f"/{name}": data for name, data in (NEMOTRON | DOLMA).items()} | {
    f"/{CC}.paths.gz": gzip.compress("\n".join(NEMOTRON).encode(), mtime=0),
    f"/datasets/allenai/dolma/resolve/{COMMIT}/urls/v1_7.txt": "\n".join(f"https://olmo-data.org/{name}" for name in DOLMA).encode(),
    "/enwiki/20260101/enwiki-20260101-pages-articles-multistream.xml.bz2": bz2.compress(WIKI.encode()),
}


def _serve_file(handler: Handler, request: Request) -> bool:
    data = handler.web.files.get(request.path)
    if data is not None:
        handler.serve(data)
    return data is not None


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    repositories = {
        name: Repository(COMMIT, files, frozenset(path for path in files if path.endswith((".parquet", ".gz", ".zst"))))
        for name, files in HUB.items()
    }
    with Hub(files=dict(WEB), repositories=repositories) as hub:
        index = f"/datasets/allenai/dolma/resolve/{COMMIT}/urls/v1_7.txt"
        hub.files[index] = hub.files[index].replace(b"https://olmo-data.org", hub.url.encode())
        hub.routes.insert(0, _serve_file)
        yield hub


def config_of(entry: CatalogSource) -> IngestConfig:
    job = entry.raw.build_config(None)  # type: ignore[arg-type]
    assert isinstance(job, IngestJob)
    return job.ingest


def here(config: IngestConfig, hub: Hub) -> IngestConfig:
    """The same declaration, with this machine in the place of the hosts."""
    source = config.source
    if isinstance(source, HubFiles):
        return config.changed(source=source.changed(endpoint=hub.url, allow_private=True))
    assert isinstance(source, HttpFiles)
    text = source.model_dump_json()
    for host in ("data.commoncrawl.org", "olmo-data.org", "dumps.wikimedia.org", "huggingface.co"):
        text = text.replace(f"https://{host}", hub.url)
    return config.changed(source=HttpFiles.from_json({**json.loads(text), "allow_private": True}))


def index_sha256(hub: Hub, path: str) -> str:
    return hashlib.sha256(hub.files[path]).hexdigest()


def dolma_index(hub: Hub) -> str:
    return index_sha256(hub, f"/datasets/allenai/dolma/resolve/{COMMIT}/urls/v1_7.txt")


SOURCES: dict[str, tuple[Callable[[Hub], CatalogSource], int, int]] = {
    "fineweb": (lambda hub: catalog.fineweb(VERSION, revision=COMMIT), 1, 3),
    "fineweb sample": (lambda hub: catalog.fineweb(VERSION, revision=COMMIT, patterns=["sample/10BT/*"]), 1, 3),
    "fineweb_edu": (lambda hub: catalog.fineweb_edu(VERSION, revision=COMMIT), 1, 3),
    "dclm_baseline": (lambda hub: catalog.dclm_baseline(VERSION, revision=COMMIT), 2, 6),
    "starcoderdata": (lambda hub: catalog.starcoderdata(VERSION, revision=COMMIT), 2, 6),
    "starcoderdata python": (lambda hub: catalog.starcoderdata(VERSION, revision=COMMIT, languages=["python"]), 1, 3),
    "proof_pile_2": (lambda hub: catalog.proof_pile_2(VERSION, revision=COMMIT), 3, 9),
    "pes2o": (lambda hub: catalog.pes2o(VERSION, revision=COMMIT), 1, 3),
    "tiny_stories": (lambda hub: catalog.tiny_stories(VERSION, revision=COMMIT), 1, 3),
    "tiny_stories validation": (lambda hub: catalog.tiny_stories(VERSION, revision=COMMIT, split="validation"), 1, 3),
    "wikipedia": (lambda hub: catalog.wikipedia(VERSION, revision=COMMIT), 1, 3),
    "wikipedia_dump": (lambda hub: catalog.wikipedia_dump(VERSION, date="20260101"), 1, 1),
    "dolma": (lambda hub: catalog.dolma("wiki", VERSION, revision=COMMIT, index_sha256=dolma_index(hub)), 1, 3),
} | {
    f"nemotron_cc {subset}": (
        lambda hub, subset=subset: catalog.nemotron_cc(subset, VERSION, index_sha256=index_sha256(hub, f"/{CC}.paths.gz")), 1, 3,
    )
    for subset in catalog.NEMOTRON_CC_SUBSETS
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_fetched_and_its_documents_are_read(name: str, hub: Hub, tmp_path: Path) -> None:
    make, units, documents = SOURCES[name]
    entry = make(hub)
    ingest(here(config_of(entry), hub), tmp_path / "raw", SilentReporter())
    assert len(read_units(tmp_path / "raw").units) == units
    filter_shard(FilterConfig(shards=1, format=entry.format), tmp_path / "raw", "00000", tmp_path / "documents", SilentReporter())
    [part] = (tmp_path / "documents").glob("part-*.parquet")
    table = pq.read_table(part)
    assert table.num_rows == documents
    assert all(len(text) > 20 for text in table["text"].to_pylist())
    if not name.startswith(("starcoderdata", "tiny_stories")):
        assert all("origin_id" in json.loads(each) for each in table["metadata"].to_pylist())


def test_the_subsets_of_nemotron_cc_share_no_file_and_leave_none_out() -> None:
    from marin_core.data.sources.patterns import Patterns

    patterns = {subset: Patterns([f"{CC}/{pattern}"]) for subset, pattern in catalog.NEMOTRON_CC_SUBSETS.items()}
    for name in NEMOTRON:
        assert sum(name in pattern for pattern in patterns.values()) == 1


def test_licences_and_policies_reach_the_units(hub: Hub, tmp_path: Path) -> None:
    ingest(here(config_of(catalog.proof_pile_2(VERSION, revision=COMMIT)), hub), tmp_path / "a", SilentReporter())
    licenses = {(unit.origin or "").partition("%2f")[0]: unit.license for unit in read_units(tmp_path / "a").units}
    assert licenses["open-web-math"] == "ODC-By-1.0"
    assert len(set(licenses.values())) == 3
    validation = config_of(catalog.tiny_stories(VERSION, revision=COMMIT, split="validation"))
    assert validation.policy == "EVAL_ONLY"
    with pytest.raises(ConfigError, match="evaluation split"):
        ingest(here(validation.changed(policy="TRAINING_ALLOWED"), hub), tmp_path / "b", SilentReporter())


@pytest.mark.parametrize("revision", ["main", "901a927"])
def test_nothing_in_the_catalogue_follows_a_branch(revision: str) -> None:
    makers: tuple[Callable[..., CatalogSource], ...] = (
        catalog.fineweb,
        catalog.fineweb_edu,
        catalog.dclm_baseline,
        catalog.starcoderdata,
        catalog.proof_pile_2,
        catalog.pes2o,
        catalog.tiny_stories,
        catalog.wikipedia,
    )
    for make in makers:
        with pytest.raises(ConfigError, match="commit of 40"):
            make(VERSION, revision=revision)


def test_recipes_weigh_exactly_their_sources() -> None:
    nemotron = catalog.nemotron_mix(VERSION, index_sha256="0" * 64, starcoderdata_revision=COMMIT, proof_pile_2_revision=COMMIT)
    assert nemotron.keys() == catalog.NEMOTRON_MIX.keys()
    assert sum(catalog.NEMOTRON_MIX.values()) == pytest.approx(11.01216)
    dclm = catalog.dclm_mix(VERSION, dclm_revision=COMMIT, starcoderdata_revision=COMMIT, proof_pile_2_revision=COMMIT)
    assert dclm.keys() == catalog.DCLM_MIX.keys()
    ids = [entry.raw.id for entry in (*nemotron.values(), *dclm.values())]
    assert len(set(ids)) == 10  # code and mathematics are shared
    with pytest.raises(ConfigError, match="has no subset"):
        catalog.nemotron_cc("best", VERSION, index_sha256="0" * 64)
    with pytest.raises(ConfigError, match="has no subset"):
        catalog.proof_pile_2(VERSION, revision=COMMIT, subsets=["x"])
