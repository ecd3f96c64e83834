"""What rules would do to a sample of documents, without making anything: `python -m marin_core.data.preview`.

A request comes as JSON on standard input: the store's prefix, the shards with their attributes, the rules, and how many documents to
look at. The answer goes as one JSON document to standard output; an error is a document `{"error": {"message", "advice"}}` and its
exit code. A process of its own, since the libraries behind documents take seconds to load.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from marin_core.artifact import ArtifactId, Store
from marin_core.config import Config
from marin_core.data.accounts import Accounts
from marin_core.data.attributes.files import attribute_file, columns_of, read_together
from marin_core.data.consolidate import STAGE, TOKENS, Deciding, bound_rules
from marin_core.data.keeping import Keeping
from marin_core.data.shard import SCHEMA, find_part
from marin_core.data.stages import ConsolidateConfig
from marin_core.errors import ConfigError, ExitCode, MarinError


class Input(Config):
    """A committed artifact, or a folder of it."""

    artifact: str
    below: str = ""


class PreviewShard(Config):
    """One shard of documents, and what is known about them."""

    documents: Input
    attributes: tuple[Input, ...]


class PreviewRequest(Config):
    """What is asked for.

    Attributes:
        sample: documents to look at, about as many of each shard.
    """

    prefix: str
    shards: tuple[PreviewShard, ...]
    consolidate: ConsolidateConfig
    sample: int


def preview(config: ConsolidateConfig, shards: Sequence[tuple[Path, Sequence[Path]]], sample: int) -> dict[str, Any]:
    """Tables `reasons`, `samples` and `sources` of the first documents of each shard, which are a random sample: ids are hashes of texts.

    Args:
        shards: folder of documents and attribute files of each.

    Raises:
        ConfigError: a rule has no attribute.
        DataError: a file is damaged, or belongs to other documents.
    """
    share = -(-sample // len(shards))
    measured = {name for _, files in shards for path in files for name in columns_of(path)}
    with (
        tempfile.TemporaryDirectory(prefix="marin-preview-") as name,
        Accounts(STAGE, Path(name), "preview", tokens=TOKENS in measured) as accounts,
    ):
        for documents, attributes in shards:
            with Keeping(accounts, Path(name), config.shard_bytes) as keeping:
                deciding = Deciding(bound_rules(config.rules, attributes), accounts, keeping)
                for row in islice(_rows(documents, attributes), share):
                    deciding.take(row)
        return {"documents": accounts.documents_in, "tables": accounts.tables()}


def _rows(documents: Path, attributes: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Each document with all that is known about it."""
    for group in read_together(find_part(documents), attributes, SCHEMA.names):
        for values in zip(*group.values(), strict=True):
            yield dict(zip(group, values, strict=True))


def main() -> int:
    """Answer one request."""
    try:
        request = PreviewRequest.from_json(json.load(sys.stdin))
        with tempfile.TemporaryDirectory(prefix="marin-preview-") as downloads:
            places = _Places(Store(request.prefix), Path(downloads))
            shards = [
                (places.folder(shard.documents), [attribute_file(places.folder(each)) for each in shard.attributes])
                for shard in request.shards
            ]
            answer = preview(request.consolidate, shards, request.sample)
    except MarinError as error:
        print(json.dumps({"error": {"message": error.message, "advice": error.advice}}))
        return int(error.exit_code)
    print(json.dumps(answer))
    return ExitCode.DONE


class _Places:
    """Local folders of committed artifacts, downloaded if they lie elsewhere."""

    def __init__(self, store: Store, downloads: Path) -> None:
        self._store = store
        self._downloads = downloads

    def folder(self, wanted: Input) -> Path:
        artifact = ArtifactId.parse(wanted.artifact)
        record = self._store.record(artifact)
        if record is None:
            raise ConfigError(f"{artifact} is not built", advice="Materialize documents and attributes first; a preview only reads them.")
        path = self._store.payload_path(record)
        if path is not None:
            return path / wanted.below
        folder = self._downloads / artifact.path / wanted.below
        if not folder.exists():
            self._store.download(record, folder, wanted.below)
        return folder


if __name__ == "__main__":
    sys.exit(main())
