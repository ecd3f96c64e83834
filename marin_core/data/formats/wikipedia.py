"""Articles of a MediaWiki dump, read as a stream of XML."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser, ParseError

from marin_core.data.formats.config import WikipediaDump
from marin_core.data.formats.items import Extract, Item, Piece, RejectedError
from marin_core.data.limits import Limits
from marin_core.data.streams import DamagedStreamError, peeked
from marin_core.data.transforms.child import Child, ChildError
from marin_core.data.transforms.wiki import stripped_text
from marin_core.errors import DataError

FEED_BYTES = 1 << 16
_KEPT = {
    ("siteinfo", "base"),
    ("page", "title"),
    ("page", "ns"),
    ("page", "id"),
    ("revision", "id"),
    ("revision", "timestamp"),
    ("revision", "format"),
    ("revision", "text"),
}
"""(parent, element) whose text is kept; an `id` also stands in `contributor`."""


@dataclass
class WikipediaReader:
    """See `WikipediaDump`."""

    config: WikipediaDump
    limits: Limits
    notes: Counter[str]
    _child: Child | None = None

    def items(self, piece: Piece) -> Iterator[Item]:
        head, stream = peeked(piece.stream)
        if head and not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            raise DataError(f"no XML: it begins with {head[:20]!r}", advice="Choose the format that the units have.")
        target = _Pages(self.limits.record_bytes, self.notes)
        parser = DefusedXMLParser(target=target, forbid_dtd=True, forbid_entities=True, forbid_external=True)
        target.position = lambda: int(parser.parser.CurrentByteIndex)
        try:
            for chunk in stream:
                for start in range(0, len(chunk), FEED_BYTES):
                    parser.feed(chunk[start : start + FEED_BYTES])
                    yield from target.taken()
            if head:
                parser.close()
        except DefusedXmlException as error:
            raise DataError(
                f"dtd_forbidden: {type(error).__name__} in the dump", advice="Dumps of a MediaWiki have no DTD: fetch it again."
            ) from error
        except ParseError as error:
            yield from target.taken()
            reason = "truncated_unit" if "no element found" in str(error) or "unclosed token" in str(error) else "damaged_unit"
            damaged = DamagedStreamError(reason, f"XML: {error}")
            damaged.offset = target.begun
            raise damaged from error
        except DamagedStreamError as error:
            error.offset = target.begun
            raise
        yield from target.taken()

    def extract(self, item: Item, piece: Piece) -> Extract:
        assert item.data is not None  # noqa: S101  # the reader has rejected it
        fields = item.fields
        if self._child is None:
            self._child = Child("wiki", self.config.cpu_seconds)
        try:
            _, data = self._child.call({}, item.data)
            text = data.decode()
        except ChildError:
            self.notes["wiki_stripped"] += 1
            text = stripped_text(item.data.decode())
        if not text.strip():
            raise RejectedError("no_text", "nothing but markup")
        metadata = {"title": fields["title"], "origin_id": f"{fields['page']}:{fields['revision']}"}
        metadata |= {key: fields[key] for key in ("url", "lang") if fields[key]}
        return Extract(text, metadata, created=fields["timestamp"] or None)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()


@dataclass
class _Pages:
    """Target of the parser: collects pages, one at a time.

    Attributes:
        begun: byte at which the page began that is not finished.
    """

    max_bytes: int
    notes: Counter[str]
    begun: int = 0
    position: Any = None
    _site: str = ""
    _language: str = ""
    _path: list[str] = field(default_factory=list)
    _texts: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _current: list[str] | None = None
    _size: int = 0
    _digest: Any = None
    _too_long: int = 0
    _redirect: bool = False
    _done: list[Item] = field(default_factory=list)

    def taken(self) -> Iterator[Item]:
        """Pages that are whole, once."""
        done, self._done = self._done, []
        yield from done

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition("}")[2]
        parent = self._path[-1] if self._path else ""
        self._path.append(name)
        if name == "page":
            self._texts, self._redirect, self.begun, self._digest = {}, False, self.position(), None
        elif name == "redirect":
            self._redirect = True
        elif name == "mediawiki":
            self._language = attributes.get("{http://www.w3.org/XML/1998/namespace}lang", "")
        elif name == "revision" and ("revision", "text") in self._texts:
            self.notes["skipped_older_revision"] += 1
            self._texts = {key: value for key, value in self._texts.items() if key[0] == "page"}
            self._digest = None
        self._current = None
        if (parent, name) in _KEPT:
            self._current, self._size = self._texts.setdefault((parent, name), []), 0

    def data(self, text: str) -> None:
        if self._current is None:
            return
        self._size += len(text.encode())
        self._current.append(text)
        if self._size > self.max_bytes:
            self._digest = self._digest or sha256()
            for held in self._current:
                self._digest.update(held.encode())
            self._current.clear()
            self._too_long = self._size

    def end(self, tag: str) -> None:
        name = self._path.pop()
        self._current = None
        if name == "siteinfo":
            self._site = self._text("siteinfo", "base").rpartition("/")[0]
        elif name == "page":
            self._finish()

    def close(self) -> None:
        """The dump is at its end."""

    def _text(self, parent: str, name: str) -> str:
        return "".join(self._texts.get((parent, name), []))

    def _finish(self) -> None:
        if self._text("page", "ns") != "0":
            self.notes["skipped_namespace"] += 1
        elif self._redirect:
            self.notes["skipped_redirect"] += 1
        else:
            self._done.append(self._item())
        self._texts = {}

    def _item(self) -> Item:
        title = self._text("page", "title")
        fields = {
            "title": title,
            "page": self._text("page", "id"),
            "revision": self._text("revision", "id"),
            "timestamp": self._text("revision", "timestamp"),
            "lang": self._language,
            "url": f"{self._site}/{quote(title.replace(' ', '_'), safe=':/()')}" if self._site else "",
        }
        if self._digest is not None:
            return Item(None, self.begun, self._too_long, self._digest.hexdigest()[:16])
        data = self._text("revision", "text").encode()
        form = self._text("revision", "format")
        reason = "not_wikitext" if form not in ("", "text/x-wiki") else "" if data.strip() else "no_text"
        return Item(data, self.begun, len(data), reason=reason, detail=form if reason == "not_wikitext" else "", fields=fields)
