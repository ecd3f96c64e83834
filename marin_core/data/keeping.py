"""What stays of a shard: documents in the order of their ids, edited where rules say so, each text once."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from marin_core.data.accounts import Accounts
from marin_core.data.documents import Document
from marin_core.data.normal_form import document_id, normal_form
from marin_core.data.rules.edits import apply_edits
from marin_core.data.rules.interface import Edit
from marin_core.data.shard import digest_row, write_sorted
from marin_core.data.sorted_documents import SeenIds, SortedDocuments
from marin_core.errors import ConfigError


class Keeping:
    """Takes the documents that stay, tells the accounts, and writes the part. A context manager: what waits on disk goes with it.

    Args:
        folder: of the shard, where sorted runs may wait.
        max_bytes: text that one shard may hold.
    """

    def __init__(self, accounts: Accounts, folder: Path, max_bytes: int) -> None:
        self._accounts = accounts
        self._documents = SortedDocuments(folder)
        self._ids = SeenIds()
        self._bytes = 0
        self._max_bytes = max_bytes

    def keep(self, document: Document, tokens: int = 0) -> None:
        """A document stays as it is.

        Raises:
            ConfigError: the shard would hold too much text.
        """
        if not self._ids.add(document.id):
            self._accounts.drop(document, "dup_in_shard", tokens=tokens)
            return
        self._accounts.keep(document, tokens)
        self._documents.add(document)
        self._bytes += document.bytes
        if self._bytes > self._max_bytes:
            raise ConfigError(
                f"more than {self._max_bytes} bytes of text stay in one shard",
                advice="Cut the source into more shards (or smaller units), or raise the limit 'shard_bytes'.",
            )

    def keep_edited(self, document: Document, edits: Sequence[Edit], tokens: int = 0) -> Document | None:
        """A document stays with edits made, in normal form and under a new id; None if nothing is left of it.

        Raises:
            ConfigError: the shard would hold too much text.
        """
        text, _ = normal_form(apply_edits(document.text, edits))
        if not text:
            self._accounts.drop(document, "nothing_left", tokens=tokens)
            return None
        size = len(text.encode())
        new = Document(document_id(text), text, document.source, document.added, document.created, document.metadata, size)
        self._accounts.notes["edited"] += 1
        self.keep(new, tokens)
        return new

    def write(self, path: Path, footer: Mapping[str, str]) -> str:
        """Write the part; returns the digest of what it means (sha256 over all columns but the text, whose digest is the id)."""
        digest = hashlib.sha256()

        def digested() -> Iterator[Document]:
            for document in self._documents:
                digest.update(digest_row(document))
                yield document

        write_sorted(path, digested(), len(self._documents), footer)
        return digest.hexdigest()

    def __enter__(self) -> Self:
        self._documents.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._documents.__exit__(*error)
