"""Articles of a MediaWiki without their markup. A task of `worker`: nested templates can keep a parser busy for hours."""

import re
from collections.abc import Mapping
from typing import Any

import mwparserfromhell

SKIPPED_TAGS = frozenset(["ref", "table", "gallery", "timeline", "score", "math", "imagemap", "hiero", "graph", "mapframe"])
"""Elements that are no running text."""
_NO_TEXT = r"(?:file|image|media|category|datei|bild|kategorie|fichier|image|catégorie|archivo|categoría)"
"""Namespaces whose links are pictures or labels."""
_NO_TEXT_LINK = re.compile(rf"\s*(?:[a-z]{{2,3}}:)?{_NO_TEXT}\s*:", re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_SKIPPED_TAG = re.compile(rf"<(/?)({'|'.join(sorted(SKIPPED_TAGS))})\b[^<>]*>", re.IGNORECASE)
_ANY_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_LINK = re.compile(rf"\[\[(?!\s*{_NO_TEXT}\s*:)(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", re.IGNORECASE)
_FILE = re.compile(rf"\[\[\s*{_NO_TEXT}\s*:[^\[\]]*\]\]", re.IGNORECASE)
_EXTERNAL = re.compile(r"\[(?:https?|ftp)://[^\s\[\]]+(?:[ \t]+([^\[\]\n]*))?\]")
_MARKS = re.compile(r"'{2,5}|^[ \t]*[*#:;]+[ \t]*|^={1,6}[ \t]*|[ \t]?={1,6}$|__[A-Z]{2,20}__", re.MULTILINE)
_BRACES = re.compile(r"\{\{|\}\}|\{\||\|\}")
_BLANK_LINES = re.compile(r"\n{3,}")


def work(request: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """Running text of one article."""
    return {}, parsed_text(data.decode()).encode(errors="replace")


def parsed_text(markup: str) -> str:
    """Text of wiki markup by mwparserfromhell: templates, tables, references, files and categories are gone, links are their text."""
    code = mwparserfromhell.parse(markup)
    for tag in code.filter_tags(recursive=False, matches=lambda node: str(node.tag).strip().lower() in SKIPPED_TAGS):
        _remove(code, tag)
    for link in code.filter_wikilinks(recursive=False, matches=lambda node: _NO_TEXT_LINK.match(str(node.title)) is not None):
        _remove(code, link)
    for heading in code.filter_headings(recursive=False):
        heading.title = str(heading.title).strip()
    return _tidy(code.strip_code(normalize=True, collapse=True))


def _remove(code: Any, node: Any) -> None:
    try:
        code.remove(node)
    except ValueError:
        return  # it went away with what held it


def stripped_text(markup: str) -> str:
    """Text of wiki markup by simple patterns, in linear time, for what the parser can't manage: a little markup may stay."""
    text = _outside_braces(_outside_tags(_COMMENT.sub("", markup)))
    text = _EXTERNAL.sub(lambda match: match[1] or "", _FILE.sub("", _LINK.sub(r"\1", text)))
    return _tidy(_MARKS.sub("", _ANY_TAG.sub("", text)))


def _outside_tags(text: str) -> str:
    """What stands outside of elements that are no running text; one that is never closed loses its tag alone."""
    kept = []
    position = 0
    start, name = -1, ""
    for match in _SKIPPED_TAG.finditer(text):
        tag = match[2].lower()
        if start < 0 and (match[0].endswith("/>") or match[1]):
            kept.append(text[position : match.start()])
            position = match.end()
        elif start < 0:
            start, name = match.start(), tag
        elif match[1] and tag == name:
            kept.append(text[position:start])
            position, start = match.end(), -1
    kept.append(text[position:])
    return "".join(kept)


def _outside_braces(text: str) -> str:
    """What stands outside `{{…}}` and `{|…|}`; braces that are never closed are dropped, and what follows them stays."""
    opened: list[int] = []
    spans: list[tuple[int, int]] = []
    for match in _BRACES.finditer(text):
        if match[0] in ("{{", "{|"):
            opened.append(match.start())
        elif opened:
            start = opened.pop()
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, match.end()))
    kept = []
    position = 0
    for start, end in spans:
        kept.append(text[position:start])
        position = end
    kept.append(text[position:])
    return _BRACES.sub("", "".join(kept))


def _tidy(text: str) -> str:
    lines = (line.rstrip() for line in text.split("\n"))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip("\n")
