"""Every kind of source and format from where it lies to tokens: real data that packages ship, and accounts to the unit at each stage."""

import gzip
import importlib
import io
import json
import pydoc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from marin_assets.builder import Builder, QuietEvents
from marin_assets.launch import InlineLauncher
from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Record, Store
from tests.data.formats.made import pdf, response, tar, wiki_dump, wiki_page, zipped
from tests.data.sources.hub import Hub, Repository
from tests.data.sources.web import cut, reset, status
from tests.storage.gcs import FakeGcs, emulator_environment

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODULES = ("argparse", "bisect", "csv", "difflib", "fractions", "gzip", "heapq", "json", "pprint", "shutil", "textwrap", "zipfile")
FIRST, SECOND = "00000", "00001"


# What packages ship ---------------------------------------------------------------------------------------------------------


def readmes() -> list[str]:
    """Descriptions of the installed packages: prose, Markdown and tables that people wrote."""
    found = {each.metadata["Name"]: each.metadata.json.get("description") for each in distributions()}
    return [text[:20_000] for _, text in sorted(found.items()) if isinstance(text, str) and len(text) > 500][:60]


def pages() -> dict[str, bytes]:
    """Pages that pydoc makes of modules, by their name."""
    made = pydoc.HTMLDoc()
    return {f"{name}.html": made.page(name, made.document(importlib.import_module(name))).encode() for name in MODULES}


def translations() -> dict[str, bytes]:
    """Message catalogues of a package in some thirty languages, from right to left and without spaces among them."""
    folder = Path(str(importlib.import_module("humanize").__file__)).parent / "locale"
    return {f"{path.parts[-3]}.txt": path.read_bytes() for path in sorted(folder.rglob("*.po"))}


def modules() -> dict[str, bytes]:
    """Source files of Python's library."""
    return {f"lib/{name}.py": Path(str(importlib.import_module(name).__file__)).read_bytes() for name in MODULES}


def json_lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"id": str(index), "text": text}).encode() + b"\n" for index, text in enumerate(texts))


def parquet(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": texts, "id": [str(index) for index in range(len(texts))]}), sink)
    return sink.getvalue()


def letter(text: str) -> list[str]:
    """Lines that a PDF with one of the fonts that every reader has can show."""
    kept = [line.encode("cp1252", "ignore").decode("cp1252") for line in text.splitlines() if line.strip()]
    return [line[:90].translate({ord(each): f"\\{each}" for each in "()\\"}) for line in kept[:45]]


# Where it lies ----------------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """Servers of this machine, a store, and what was built in it."""

    folder: Path
    hub: Hub
    gcs: FakeGcs
    store: Store
    served: dict[str, bytes] = field(default_factory=dict)

    def local(self, name: str, files: dict[str, bytes], pattern: str = "**") -> lab.LocalFiles:
        for path, data in files.items():
            place = self.folder / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return lab.LocalFiles(root=str(self.folder / name), pattern=pattern)

    def http(self, files: dict[str, bytes]) -> lab.HttpFiles:
        """Files of a web server that breaks the first tries: no answer, half of an answer, and being busy."""
        for path, data in files.items():
            self.hub.files[f"/{path}"] = data
            self.hub.script[f"/{path}"] = [reset, cut(len(data) // 2), status(503, Retry_After="0")]
        return lab.HttpFiles(files=tuple(lab.HttpFile(url=f"{self.hub.url}/{path}") for path in files), allow_private=True)

    def repository(self, name: str, files: dict[str, bytes]) -> lab.HubFiles:
        self.hub.repositories[f"lab/{name}"] = Repository(COMMIT, files, frozenset(files))
        return lab.HubFiles(repository=f"lab/{name}", revision=COMMIT, endpoint=self.hub.url, allow_private=True)

    def bucket(self, name: str, files: dict[str, bytes]) -> lab.BucketFiles:
        from gcsfs.core import GCSFileSystem

        fs = GCSFileSystem(token="anon", endpoint_url=self.gcs.url, use_listings_cache=False, skip_instance_cache=True)  # noqa: S106
        for path, data in files.items():
            fs.pipe_file(f"lab/{name}/{path}", data)
        return lab.BucketFiles(prefix=f"gs://lab/{name}")

    def build(self, *steps: ArtifactStep) -> None:
        graph = ArtifactGraph(steps)
        launcher = InlineLauncher(self.folder / "jobs")
        builder = Builder(graph=graph, store=self.store, target=self.store, launcher=launcher, events=QuietEvents())
        for step in graph:
            for artifact in step.ids():
                builder.build(step, artifact)

    def record(self, step: ArtifactStep, key: str | None = None) -> Record:
        record = self.store.record(ArtifactId(step.name, step.version, key))
        assert record is not None
        assert [each.name for each in record.checks if not each.passed] == []
        return record


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with ExitStack() as stack:
        gcs, hub = stack.enter_context(FakeGcs()), stack.enter_context(Hub())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "no-token"))
        patch.setattr("marin_core.data.sources.http.LONGEST_BACKOFF_SECONDS", 0.01)
        for name, value in emulator_environment(gcs.url).items():
            patch.setenv(name, value)
        yield World(folder, hub, gcs, Store(f"file://{folder}/store"))


@dataclass(frozen=True)
class Case:
    """A source with what must come of it.

    Attributes:
        records: records that its units hold, good and bad.
        rejected: those of them that can't be a document.
    """

    source: lab.Source
    format: lab.Format
    records: int
    rejected: int = 0


def local_html(world: World) -> Case:
    made = pages()
    empty, copied = {"empty.html": b"<html><body></body></html>"}, {"again.html": made["csv.html"]}
    return Case(world.local("html", made | empty | copied), lab.HtmlFiles(html=lab.FromHtml(to="markdown")), len(made) + 2, 1)


def local_code(world: World) -> Case:
    made = modules()
    return Case(world.local("code", made | {"lib/cut.py": b"x = '\xff\xfe\x00'"}), lab.CodeTree(), len(made) + 1, 1)


def local_wikipedia(world: World) -> Case:
    texts = readmes()[:20]
    articles = [wiki_page(f"Package {n}", f"'''{text[:40]}'''\n\n{text}", n) for n, text in enumerate(texts, 1)]
    dumps = {"articles1.xml.bz2": wiki_dump(articles[:12], streams=7), "articles2.xml": wiki_dump(articles[12:])}
    return Case(world.local("wiki", dumps), lab.WikipediaDump(), len(texts))


def http_warc(world: World) -> Case:
    archives = [gzip.compress(response(f"https://docs.example/{name}", page)) for name, page in pages().items()]
    return Case(
        world.http({"crawl/a.warc.gz": b"".join(archives[:7]), "crawl/b.warc.gz": b"".join(archives[7:])}), lab.Warc(), len(archives)
    )


def http_pdf(world: World) -> Case:
    made = {f"{index}.pdf": pdf([letter(text), letter(text[3_000:])]) for index, text in enumerate(readmes()[:15])}
    made |= {"scan.pdf": pdf([[], []]), "torn.pdf": made["3.pdf"][:600]}
    return Case(world.http({"papers.zip": zipped(made), "paper.pdf": pdf([letter(readmes()[20])])}), lab.PdfFiles(), len(made) + 1, 2)


def http_json_lines(world: World) -> Case:
    texts = readmes()
    bad = b'{"id": "x"}\nno json at all\n{"id": "y", "text": 7}\n'
    files = {"a.jsonl.gz": gzip.compress(json_lines(texts[:30]) + bad), "b.jsonl.gz": gzip.compress(json_lines(texts[30:] + texts[30:31]))}
    return Case(world.http(files), lab.Jsonl(), len(texts) + 4, 3)


def hub_parquet(world: World) -> Case:
    texts = [*readmes(), ""]
    files = {"data/train-0.parquet": parquet(texts[:25]), "data/train-1.parquet": parquet(texts[25:])}
    return Case(world.repository("readmes", files), lab.ParquetRows(columns={"origin_id": "id"}), len(texts), 1)


def bucket_archive(world: World) -> Case:
    made = translations() | {"latin.txt": "Grüße".encode("latin-1")}
    files = list(made.items())
    archives = {"a.tar.gz": gzip.compress(tar(dict(files[:20]))), "b.tar": tar(dict(files[20:]))}
    return Case(world.bucket("languages", archives), lab.PlainText(), len(made), 1)


def bucket_json_lines(world: World) -> Case:
    texts = readmes()
    files = {"x.jsonl.zst": zstandard.compress(json_lines(texts[:40])), "deep/y.jsonl": json_lines(texts[40:])}
    return Case(world.bucket("lines", files), lab.Jsonl(), len(texts))


QUICK = (http_warc, bucket_archive)
SLOW = (local_html, local_code, local_wikipedia, http_pdf, http_json_lines, hub_parquet, bucket_json_lines)
CASES = [pytest.param(make, id=make.__name__) for make in QUICK]
CASES += [pytest.param(make, id=make.__name__, marks=pytest.mark.slow) for make in SLOW]


@pytest.fixture(scope="module")
def tokenizer(world: World) -> ArtifactStep:
    raw = lab.raw_source("raw/words", "v1", world.local("words", {"words.jsonl": json_lines(readmes()[:30])}), license="CC0-1.0")
    step = lab.tokenizer("tokenizers/words", "v1", [lab.documents("documents/words", "v1", raw, shards=1)], vocab_size=400)
    world.build(step)
    return step


RULES: list[lab.FilterRule] = [
    lab.MinCharacters(characters=2_000),
    lab.KeepLanguages(languages=("en", "de", "ja", "ar"), min_letters=5_000),
    lab.DropNearDuplicates(),
]


@pytest.mark.parametrize("make", CASES)
def test_nothing_is_lost_between_the_source_and_the_tokens(make: Callable[[World], Case], world: World, tokenizer: ArtifactStep) -> None:
    case, name = make(world), make.__name__
    raw = lab.raw_source(f"raw/{name}", "v1", case.source, license="CC0-1.0")
    documents = lab.documents(f"documents/{name}", "v1", raw, shards=2, format=case.format)
    measures: list[lab.MeasureConfig] = [lab.LengthMeasure(), lab.LanguageMeasure(), lab.TokenCountMeasure()]
    values = lab.attributes(f"attributes/{name}", "v1", documents, measures, resources={"tokenizer": tokenizer})
    near = lab.near_duplicates(f"duplicates/{name}", "v1", {documents: lab.signatures(f"signatures/{name}", "v1", documents)})
    kept = lab.consolidated(f"filtered/{name}", "v1", documents, attributes=[values, near], rules=RULES)
    tokens = lab.tokenized(f"tokenized/{name}", "v1", kept, tokenizer)
    held_out = lab.tokenized(f"held_out/{name}", "v1", kept, tokenizer, split="held_out")
    world.build(tokens, held_out)

    made = [world.record(documents, key).metrics for key in (FIRST, SECOND)]
    read = sum(int(each["documents_in"]) for each in made)
    good = sum(int(each["documents_kept"]) for each in made)
    repeated = sum(int(each["documents_dropped"]) for each in made)
    assert (read, sum(int(each["documents_rejected"]) for each in made)) == (case.records, case.rejected)
    assert read == good + repeated + case.rejected
    decided = [world.record(kept, key).metrics for key in (FIRST, SECOND)]
    left = sum(int(each["documents_kept"]) for each in decided)
    dropped = sum(int(each["documents_dropped"]) for each in decided)
    assert [each["documents_in"] for each in decided] == [each["documents_kept"] for each in made]
    assert good == left + dropped
    assert left > 0
    assert sum(int(each["documents_rejected"]) for each in decided) == 0
    cached = [world.record(tokens, key).metrics for key in (FIRST, SECOND)]
    apart = world.record(held_out).metrics
    assert sum(int(each["documents"]) for each in cached) + int(apart["documents"]) == left
    assert sum(int(each["documents_in_other_split"]) for each in cached) == int(apart["documents"])
    texts = texts_of(world, kept)
    assert len(set(texts)) == len(texts)  # in one shard a copy goes at once, in two it is found near
    assert set(texts) <= set(texts_of(world, documents))


def texts_of(world: World, family: ArtifactStep) -> list[str]:
    """All texts of a family."""
    found: list[str] = []
    for key in (FIRST, SECOND):
        folder = world.store.payload_path(world.record(family, key))
        assert folder is not None
        [part] = folder.glob("part-*.parquet")
        found += pq.read_table(part, columns=["text"]).column("text").to_pylist()
    return found
