"""`index.html`: the mix for people, made from its newest commits alone, so that equal commits give equal bytes.

No script, no font, no picture from elsewhere: it works when opened from a bucket or a folder. Everything that came from outside is
escaped, and characters that are not seen, such as those that turn the direction of text, are written out.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from marin_core.mix.chart import COLORS, OTHER_COLOR, Series, chart
from marin_core.mix.commit import Commit, Json
from marin_core.mix.message import rounded
from marin_core.mix.place import HEAD_FILE, STATUS_FILE
from marin_core.mix.read import domain_names

HISTORY = 50
"""Commits whose messages and shares are shown; older ones are behind the links."""

ROWS = 1_000
CHANGES = 200
CELL_CHARACTERS = 200
CHARTS = 4
"""Phases that get a chart."""

SECURITY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_SEQ = re.compile(rb'<meta name="mix-seq" content="(\d{1,12})">')
_VISIBLE_FORMAT = "\u200c\u200d"
"""Joiners, which scripts need and which move nothing."""

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.about { margin-top: .2rem; opacity: .75; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } caption { text-align: left; opacity: .75; padding-bottom: .3rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid #8884; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; } code { font-size: .87em; overflow-wrap: anywhere; }
time, .id { white-space: nowrap; overflow-wrap: normal; }
.hidden { background: #c003; border-radius: 3px; font-family: monospace; font-size: .87em; }
.bar { display: inline-block; width: 7rem; height: .7rem; background: #8883; margin-right: .5rem; }
.bar span { display: block; height: 100%; background: #0072b2; }
.key { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 .9rem; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
"""


def page_seq(page: bytes) -> int:
    """Number of the commit that a page shows; −1 if it doesn't say."""
    found = _SEQ.search(page)
    return int(found.group(1)) if found else -1


def render(history: Sequence[Commit]) -> bytes:
    """The page of a mix.

    Args:
        history: its newest commits, newest first, at most `HISTORY` of them.
    """
    head = history[0]
    name = text(head.content.get("mixture", {}).get("name", "mix"))
    body = [
        f"<h1>{name}</h1>",
        f'<p class="about">Commit {head.seq} of {_time(head)}, by {text(head.author)}. JSON: {_link(head.path, "this commit")}, '
        f"{_link(HEAD_FILE, HEAD_FILE)}, {_link(STATUS_FILE, STATUS_FILE)}.</p>",
        _about(head.content),
        _section("Domains", _domains(head)),
        _section("Phases", _phases(head.content)),
        _section("Shares over time", _charts(history)),
        _section("Changed by this commit", _changes(head)),
        _section("History", _history(history)),
    ]
    meta = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{SECURITY}">',
        f'<meta name="mix-seq" content="{head.seq}">',
        '<meta name="referrer" content="no-referrer">',
        '<link rel="icon" href="data:,">',  # else browsers ask the bucket for one
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{visible(str(head.content.get('mixture', {}).get('name', 'mix')))}</title>",
        f"<style>{STYLE}</style>",
    ]
    page = ["<!doctype html>", '<html lang="en">', "<head>", *meta, "</head>", "<body>", *body, "</body>", "</html>", ""]
    return "\n".join(page).encode("utf-8", "backslashreplace")


# Sections --------------------------------------------------------------------------------------------------------------


def _about(content: Json) -> str:
    mixture, tokenizer = content.get("mixture", {}), content.get("tokenizer", {})
    facts = {
        "mixture": f"{mixture.get('name', '')}@{mixture.get('version', '')}",
        "fingerprint": mixture.get("fingerprint"),
        "tokenizer": tokenizer.get("digest"),
        "vocabulary": tokenizer.get("vocab_size"),
        "sequence length": content.get("sequence_length"),
        "block sequences": content.get("block_sequences"),
    }
    rows = [[text(name), f"<code>{text(value)}</code>"] for name, value in facts.items() if value is not None]
    return _table(["", ""], rows)


def _domains(head: Commit) -> str:
    content, weights = head.content, head.weights()
    names = sorted(domain_names(content), key=lambda name: (-_decimal(weights.get(name)), name))
    rows = []
    for name in names[:ROWS]:
        domain = content.get("domains", {}).get(name, {})
        missing = domain.get("missing_shards", [])
        rows.append(
            [
                text(name),
                _bar(weights.get(name, "0")),
                _count(domain.get("tokens")),
                _count(domain.get("documents")),
                _count(domain.get("shards")) + (f" ({len(missing)} missing)" if missing else ""),
                text(domain.get("epochs_at_planned", "")),
                text(domain.get("license", "")),
                f'<code class="id">{text(str(domain.get("cache_digest", ""))[:12])}</code>',
                f"<code>{text(domain.get('artifact', ''))}</code>",
            ]
        )
    header = ["domain", "weight", "tokens", "documents", "shards", "epochs", "licence", "digest", "artifact"]
    return _table(header, rows, numbers={2, 3, 4, 5}, caption=_cut(len(names), ROWS, head))


def _phases(content: Json) -> str:
    phases = content.get("phases", [])
    names = sorted({name for phase in phases for name in phase["weights"]})
    rows = [[text(name), *(_percent(phase["weights"].get(name, "0")) for phase in phases)] for name in names[:ROWS]]
    return _table(
        ["domain", *(f"from {text(phase['start'])}" for phase in phases)],
        rows,
        numbers=set(range(1, len(phases) + 1)),
        caption="A start is a share of the run, or a step.",
    )


def _charts(history: Sequence[Commit]) -> str:
    head, parts = history[0], []
    for index, phase in enumerate(head.content.get("phases", [])[:CHARTS]):
        shown = [commit for commit in reversed(history) if commit.weights(index)]
        series = _series(shown, index)
        keys = "".join(f'<span class="key" style="background:{each.color}"></span>{text(each.name)}' for each in series)
        title = f"Weights of the phase from {text(phase['start'])}, in the last {len(shown)} commits"
        drawn = chart([commit.time for commit in shown], series, f"{title}: {', '.join(visible(each.name) for each in series)}")
        parts.append(f"<figure><figcaption>{title}{keys}</figcaption>\n{drawn}</figure>")
    return "\n".join(parts)


def _series(commits: Sequence[Commit], phase: int) -> list[Series]:
    """Shares by domain, the largest first; what has no colour of its own is taken together."""
    weights = [commit.weights(phase) for commit in commits]
    names = {name for each in weights for name in each}
    ranked = sorted(names, key=lambda name: (-max(_decimal(each.get(name)) for each in weights), name))
    own = ranked if len(ranked) <= len(COLORS) else ranked[: len(COLORS) - 1]
    series = [
        Series(name, color, tuple(float(_decimal(each.get(name))) for each in weights)) for name, color in zip(own, COLORS, strict=False)
    ]
    rest = ranked[len(own) :]
    if rest:
        sums = tuple(float(sum((_decimal(each.get(name)) for name in rest), Decimal(0))) for each in weights)
        series.append(Series(f"{len(rest)} others", OTHER_COLOR, sums))
    return series


def _changes(head: Commit) -> str:
    if head.parent is None:
        return "<p>It is the first one.</p>"
    rows = [[f"<code>{text(each.path)}</code>", _value(each.old), _value(each.new)] for each in head.diff[:CHANGES]]
    return _table(["field", "before", "now"], rows, caption=_cut(len(head.diff), CHANGES, head))


def _history(history: Sequence[Commit]) -> str:
    rows = [
        [
            _link(commit.path, str(commit.seq)),
            _time(commit),
            text(commit.author),
            f'<div class="text">{text(commit.message, longest=4_000)}</div>',
            str(len(commit.diff)),
            f'<code class="id">{commit.id[:12]}</code>',
        ]
        for commit in history
    ]
    older = f"The last {len(history)} of {history[0].seq + 1} commits." if len(history) <= history[0].seq else ""
    return _table(["commit", "hour", "author", "message", "changes", "id"], rows, numbers={0, 4}, caption=older)


# Pieces ----------------------------------------------------------------------------------------------------------------


def text(value: object, longest: int = CELL_CHARACTERS) -> str:
    """Any value as text that is safe within an element or an attribute: cut, escaped, with unseen characters written out."""
    said = str(value)
    cut = said if len(said) <= longest else f"{said[:longest]}…"
    if cut.isprintable():  # nearly all of them
        return html.escape(cut)
    return "".join(html.escape(each) if _is_seen(each) else f'<span class="hidden">{_written_out(each)}</span>' for each in cut)


def visible(value: str) -> str:
    """The same for an attribute or a title, which can't hold elements."""
    return html.escape("".join(each if _is_seen(each) else _written_out(each) for each in value[:CELL_CHARACTERS]))


def _is_seen(character: str) -> bool:
    if character in "\n\t" or character in _VISIBLE_FORMAT:
        return True
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _written_out(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) < 1 << 16 else f"\\U{ord(character):08x}"


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>\n{body}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] = (), caption: str = "") -> str:
    """A table of cells that are HTML already."""
    right = set(numbers)

    def row(cells: Sequence[str], tag: str) -> str:
        return (
            "<tr>"
            + "".join(f"<{tag}{' class=number' if index in right else ''}>{cell}</{tag}>" for index, cell in enumerate(cells))
            + "</tr>"
        )

    head = f"<thead>{row(header, 'th')}</thead>" if any(header) else ""
    said = f"<caption>{caption}</caption>" if caption else ""
    return f'<div class="scroll"><table>{said}{head}<tbody>\n' + "\n".join(row(cells, "td") for cells in rows) + "\n</tbody></table></div>"


def _cut(total: int, shown: int, commit: Commit) -> str:
    return f"{shown:,} of {total:,}; {_link(commit.path, 'all of them')}" if total > shown else ""


def _link(path: str, label: str) -> str:
    return f'<a href="{html.escape(path)}">{html.escape(label)}</a>'


def _time(commit: Commit) -> str:
    return f"<time>{html.escape(commit.hour)}</time>"


def _bar(weight: str) -> str:
    percent = min(Decimal(100), max(Decimal(0), _decimal(weight) * 100))
    return f'<span class="bar"><span style="width:{percent:.2f}%"></span></span>{_percent(weight)}'


def _percent(weight: str) -> str:
    shown = f"{_decimal(weight) * 100:.4f}".rstrip("0").rstrip(".")
    return f"{shown or '0'} %"


def _count(value: Any) -> str:
    return f'<span title="{value:,}">{rounded(value)}</span>' if type(value) is int and value >= 0 else text("" if value is None else value)


def _value(value: Any) -> str:
    return "—" if value is None else text(f"{value:,}" if type(value) is int else value)


def _decimal(value: Any) -> Decimal:
    """A weight as a number; what is none counts as nothing, since a page must come out of any commit that hashes right."""
    try:
        found = Decimal(value) if isinstance(value, str) else Decimal(0)
    except InvalidOperation:
        return Decimal(0)
    return found if found.is_finite() else Decimal(0)
