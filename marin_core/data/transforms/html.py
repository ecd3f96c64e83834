"""Pages as text or Markdown. A task of `worker`: resiliparse is native code, and pages are hostile."""

import re
from collections.abc import Mapping
from typing import Any

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree
from resiliparse.parse.html.exception import HTMLParserException

from marin_core.data.transforms.charset import UndecodableError, decode
from marin_core.data.transforms.child import ChildError
from marin_core.data.transforms.markdown import markdown

TITLE_CHARACTERS = 1_000
_BLANKS = re.compile(r"\s+")


def work(request: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """Text of one page.

    Args:
        request: fields of `formats.config.FromHtml`, and `charset`, what the server said.

    Raises:
        ChildError: `undecodable`, `html_empty` if the page has no text, or `memory`.
    """
    try:
        page, replaced = decode(data, request.get("charset"))
    except UndecodableError as error:
        raise ChildError("undecodable", str(error)) from None
    try:
        text, title = page_text(page, to=request["to"], main_content=request["main_content"], links=request["links"])
    except HTMLParserException as error:  # it takes any page, but for want of memory
        raise ChildError("memory", str(error)) from None
    if not text.strip():
        raise ChildError("html_empty", f"no text in {len(data)} bytes")
    return {"title": title, "replaced": replaced}, text.encode(errors="replace")


def page_text(page: str, *, to: str = "text", main_content: bool = False, links: bool = False) -> tuple[str, str]:
    """(text, title) of a page; scripts, styles and hidden elements are gone, no-break spaces are spaces."""
    tree = HTMLTree.parse(page)
    if to == "markdown":
        text = markdown(tree.body.html if tree.body is not None else "", links=links)
    else:
        text = extract_plain_text(tree, main_content=main_content, links=links, alt_texts=False)
    title = _BLANKS.sub(" ", tree.title or "").strip()[:TITLE_CHARACTERS]
    return text.replace("\u00a0", " "), title
