"""HTML as Markdown (CommonMark, tables as in GitHub's): headings, lists, quotations, tables, code with its whitespace."""

import re
from dataclasses import dataclass, field
from html import unescape

SKIPPED = frozenset(
    [
        "script",
        "style",
        "noscript",
        "template",
        "iframe",
        "svg",
        "math",
        "head",
        "object",
        "select",
        "textarea",
        "button",
        "canvas",
        "audio",
        "video",
    ]
)
"""Elements without text for readers."""
RAW = frozenset(["script", "style", "iframe"])
"""Elements whose content is written out as it is, tags and all."""
VOID = frozenset(["area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"])
_SECTIONS = [
    "address",
    "article",
    "aside",
    "body",
    "dialog",
    "div",
    "fieldset",
    "footer",
    "form",
    "header",
    "hgroup",
    "html",
    "main",
    "nav",
]
_PARTS = [
    "center",
    "details",
    "figcaption",
    "figure",
    "legend",
    "menu",
    "section",
    "summary",
    "blockquote",
    "p",
    "pre",
    "hr",
    "table",
    "tbody",
]
_ITEMS = ["dd", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "li", "ol", "td", "tfoot", "th", "thead", "tr", "ul"]
BLOCKS = frozenset([*_SECTIONS, *_PARTS, *_ITEMS])
EMPHASIS = {"b": "**", "strong": "**", "i": "*", "em": "*", "code": "`", "kbd": "`", "samp": "`", "tt": "`", "del": "~~", "s": "~~"}

MAX_INDENTS = 50
"""Lists and quotations that are deeper are written at this depth: 100,000 of them would make a text of their square."""

_EVENT = re.compile(r"<!--.*?-->|<(/?)([a-zA-Z][^\s/>]*)([^>]*)>|[^<]+|<", re.DOTALL)
"""Events of a tree that a parser has written out: tags are balanced, and `<` and `>` in text and attributes are escaped."""
_BLANKS = re.compile(r"[ \t\n\f\r\u00a0]+")
_LANGUAGE = re.compile(r'class="(?:[^"]*\s)?(?:language|lang|highlight-source)-([\w+#.-]{1,30})')
_HREF = re.compile(r'href="([^"]*)"')
_HIDDEN = re.compile(r'\shidden(?:[\s=>]|$)|style="[^"]*display:\s*none|aria-hidden="true"')


def markdown(html: str, *, links: bool = False) -> str:
    """Markdown of an element that a parser has serialised. Linear in its length, whatever the nesting.

    Args:
        html: serialised tree (`resiliparse`'s `node.html`), so that it can be read event by event.
        links: write `[text](url)`; otherwise the text of links alone.
    """
    writer = _Writer(links)
    position = 0
    while (event := _EVENT.match(html, position)) is not None:
        position = event.end()
        closing, tag, attributes = event[1], event[2], event[3]
        if tag is None:
            if not event[0].startswith("<!--"):
                writer.text(event[0])
            continue
        tag = tag.lower()
        if closing:
            writer.end(tag)
        elif tag in SKIPPED or (attributes and tag not in VOID and _HIDDEN.search(attributes)):
            position = _after_element(html, position, tag)
        else:
            writer.start(tag, attributes)
    return writer.result()


def _after_element(html: str, position: int, tag: str) -> int:
    """Where an element ends whose start tag ends at `position`; elements of its own name may stand in it."""
    if tag in RAW:
        end = html.find(f"</{tag}", position)
        end = html.find(">", end) if end >= 0 else -1
        return len(html) if end < 0 else end + 1
    depth = 1
    for match in re.compile(rf"<(/?){re.escape(tag)}(?=[\s/>])", re.IGNORECASE).finditer(html, position):
        depth += -1 if match[1] else 1
        if not depth:
            end = html.find(">", match.end())
            return len(html) if end < 0 else end + 1
    return len(html)


@dataclass
class _List:
    """An open list: the number of its next item, None for bullets; the width of its last item's mark."""

    number: int | None
    width: int = 2


@dataclass
class _Table:
    """An open table: its finished rows, and the cell that is being written."""

    rows: list[list[str]] = field(default_factory=list)
    cell: list[str] | None = None


class _Writer:
    """Collects lines of Markdown from the events of a tree."""

    def __init__(self, links: bool) -> None:
        self._links = links
        self._blocks: list[str] = []
        self._inline: list[str] = []
        self._prefix = ""  # of the block that is being written: `# `, `- `
        self._lists: list[_List] = []
        self._quotes = 0
        self._pre: list[str] | None = None
        self._pre_language = ""
        self._hrefs: list[str | None] = []
        self._tables: list[_Table] = []

    def text(self, escaped: str) -> None:
        text = unescape(escaped) if "&" in escaped else escaped
        if self._pre is not None:
            self._pre.append(text)
        else:
            self._inline.append(_BLANKS.sub(" ", text))

    def start(self, tag: str, attributes: str) -> None:
        if self._pre is not None:
            self._start_in_pre(tag, attributes)
        elif self._tables and self._tables[-1].cell is not None and tag != "table":
            self._start_in_cell(tag, attributes)
        elif tag in BLOCKS:
            self._flush()
            self._start_block(tag, attributes)
        else:
            self._start_inline(tag, attributes)

    def end(self, tag: str) -> None:
        if self._pre is not None:
            if tag == "pre":
                self._end_pre()
        elif self._tables and self._tables[-1].cell is not None and tag not in ("td", "th", "tr", "table"):
            self._end_inline(tag)
        elif tag in BLOCKS:
            self._end_block(tag)
        else:
            self._end_inline(tag)

    def result(self) -> str:
        while self._tables:
            self._end_table()
        if self._pre is not None:
            self._end_pre()
        self._flush()
        return "\n\n".join(self._blocks).strip("\n")

    # Blocks

    def _start_block(self, tag: str, attributes: str) -> None:
        if tag in ("ul", "ol", "menu"):
            self._lists.append(_List(_first_number(attributes) if tag == "ol" else None))
        elif tag == "li":
            self._prefix = self._item_mark()
        elif len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self._prefix += "#" * int(tag[1]) + " "
        elif tag == "blockquote":
            self._quotes += 1
        elif tag == "pre":
            self._pre, self._pre_language = [], _language(attributes)
        elif tag == "hr":
            self._block("---")
        elif tag == "table":
            self._tables.append(_Table())
        elif tag == "tr" and self._tables:
            self._tables[-1].rows.append([])
        elif tag in ("td", "th") and self._tables:
            self._tables[-1].cell = []

    def _end_block(self, tag: str) -> None:
        if tag in ("td", "th", "tr", "table") and self._tables:
            self._end_cell()
            if tag == "table":
                self._end_table()
            return
        self._flush()
        if tag in ("ul", "ol", "menu") and self._lists:
            self._lists.pop()
        elif tag == "blockquote" and self._quotes:
            self._quotes -= 1
        elif tag in ("li", "h1", "h2", "h3", "h4", "h5", "h6"):
            self._prefix = ""

    def _item_mark(self) -> str:
        if not self._lists:
            return "- "
        current = self._lists[-1]
        mark = "- " if current.number is None else f"{current.number}. "
        if current.number is not None:
            current.number += 1
        current.width = len(mark)
        return mark

    def _flush(self) -> None:
        """Write the block that inline text has made up to here."""
        text = "".join(self._inline).strip()
        self._inline = []
        if text:
            self._block("\n".join(_BLANKS.sub(" ", line).strip() for line in text.split("\n")))

    def _block(self, text: str) -> None:
        """Append a block, indented as the lists and quotations around it ask; items of a list stand close to each other."""
        mark, self._prefix = self._prefix, ""
        item = mark[:1] == "-" or mark[:1].isdigit()
        lists = self._lists[:MAX_INDENTS]
        outer = "> " * min(self._quotes, MAX_INDENTS) + " " * sum(each.width for each in lists[:-1])
        hanging = " " * lists[-1].width if lists else "  " if item else ""
        first = outer + (mark if item else hanging + mark)
        lines = text.split("\n")
        made = "\n".join([first + lines[0], *((outer + hanging + line).rstrip() for line in lines[1:])])
        if item and self._blocks and _is_item(self._blocks[-1]):
            self._blocks[-1] += "\n" + made
        else:
            self._blocks.append(made)

    # Code

    def _start_in_pre(self, tag: str, attributes: str) -> None:
        if tag == "br":
            self.text("\n")
        elif not self._pre_language:
            self._pre_language = _language(attributes)

    def _end_pre(self) -> None:
        code = "".join(self._pre or []).replace("\r\n", "\n").strip("\n").rstrip()
        self._pre = None
        if code.strip():
            longest = max((len(run) for run in re.findall(r"`{3,}", code)), default=2)
            fence = "`" * (longest + 1)
            self._block(f"{fence}{self._pre_language}\n{code}\n{fence}")
        self._pre_language = ""

    # Inline

    def _start_inline(self, tag: str, attributes: str) -> None:
        if tag == "br":
            self._inline.append("\n")
        elif tag in EMPHASIS:
            self._mark(EMPHASIS[tag], opening=True)
        elif tag == "a":
            found = _HREF.search(attributes) if self._links else None
            self._hrefs.append(unescape(found[1]) if found else None)
            if found:
                self._inline.append("[")

    def _end_inline(self, tag: str) -> None:
        if tag in EMPHASIS:
            self._mark(EMPHASIS[tag], opening=False)
        elif tag == "a" and self._hrefs and (href := self._hrefs.pop()) is not None:
            self._inline.append(f"]({href})")

    def _mark(self, mark: str, *, opening: bool) -> None:
        """Write a mark of emphasis; one around nothing disappears, and blanks inside it move out."""
        if opening:
            self._inline.append(mark)
            return
        blank = ""
        while self._inline and self._inline[-1].endswith(" "):
            self._inline[-1], blank = self._inline[-1].rstrip(" "), " "
            if not self._inline[-1]:
                self._inline.pop()
        if self._inline and self._inline[-1] == mark:
            self._inline.pop()
        elif self._inline:
            self._inline.append(mark)
        self._inline.append(blank)

    # Tables

    def _start_in_cell(self, tag: str, attributes: str) -> None:
        if tag in ("td", "th", "tr"):
            self._end_cell()
            self._start_block(tag, attributes)
        elif tag in BLOCKS or tag == "br":
            self._inline.append(" ")
        else:
            self._start_inline(tag, attributes)

    def _end_cell(self) -> None:
        table = self._tables[-1]
        if table.cell is not None:
            text = _BLANKS.sub(" ", "".join(self._inline)).strip()
            if not table.rows:
                table.rows.append([])
            table.rows[-1].append(text.replace("|", "\\|"))
            table.cell = None
            self._inline = []

    def _end_table(self) -> None:
        self._end_cell()
        rows = [row for row in self._tables.pop().rows if any(row)]
        width = max(map(len, rows), default=0)
        if width == 1:  # a table made for layout
            for row in rows:
                self._block(row[0])
        elif rows:
            padded = [[*row, *[""] * (width - len(row))] for row in rows]
            lines = ["| " + " | ".join(row) + " |" for row in padded]
            self._block("\n".join([lines[0], "|" + " --- |" * width, *lines[1:]]))


def _is_item(block: str) -> bool:
    return bool(re.match(r"[> ]*(?:- |\d+\. )", block))


def _first_number(attributes: str) -> int:
    found = re.search(r'start="(\d{1,6})"', attributes)
    return int(found[1]) if found else 1


def _language(attributes: str) -> str:
    found = _LANGUAGE.search(attributes)
    return found[1] if found else ""
