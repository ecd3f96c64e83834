"""Making edits in a text: what several rules want changed, in one pass."""

from collections.abc import Iterable

from marin_core.data.rules.interface import Edit


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made; their places are those of the text as it was, so their order doesn't matter.

    Edits that overlap become one: all characters that any of them covers go. If one of them removes, nothing is put in their place;
    otherwise the text of the one that begins first, of those the shortest. The result isn't in normal form: blanks may end it.

    Raises:
        ValueError: an edit reaches beyond the text, or ends before it begins.
    """
    pieces = []
    kept = 0
    for edit in _apart(edits):
        if not 0 <= edit.start <= edit.end <= len(text):
            raise ValueError(f"an edit covers [{edit.start}, {edit.end}) of a text of {len(text)} characters")
        pieces += [text[kept : edit.start], edit.text]
        kept = edit.end
    return "".join([*pieces, text[kept:]])


def _apart(edits: Iterable[Edit]) -> list[Edit]:
    """Edits in order, none of which overlaps another."""
    apart: list[Edit] = []
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end, edit.text)):
        if not apart or edit.start >= apart[-1].end:
            apart.append(edit)
            continue
        before = apart.pop()
        text = before.text if before.text and edit.text else ""
        apart.append(Edit(before.start, max(before.end, edit.end), text))
    return apart
