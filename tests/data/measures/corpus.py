"""Real texts, whole and spoilt in every way that rules look for: the ground on which decisions are compared."""

import random
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from marin_core.data.normal_form import normal_form

STDLIB = Path(sysconfig.get_paths()["stdlib"])
MEANT_LINES = (
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
    "Please enable JavaScript to view this page.",
    "This site uses cookies, see our privacy policy.",
    "The set { x } is what remains.",
    "He said so in 1901.[12] It was denied [citation needed].",
    "Read more...",
    "- a point in a list",
    "• another point in a list…",
    "#hashes #everywhere #here",
    "word" * 300 + ".",
    "你好。今天天气很好！我们去公园吧。",
    "Line one.\u2028Line two, which has more words.",
    "1 1 1 1 11 1 1 1 1 1 11 1 11",
)


@cache
def real_texts() -> tuple[str, ...]:
    """Docstrings, whole modules and plain paragraphs of the standard library, in one fixed order."""
    texts = []
    for path in sorted(STDLIB.glob("*.py"))[:120]:
        source = path.read_text(encoding="utf-8", errors="replace")
        texts.append(source[:6_000])
        texts += [piece for piece in source.split('"""')[1::2] if len(piece) > 200]
    for path in sorted(STDLIB.glob("pydoc_data/topics.py")):
        texts += [piece.replace("\\n", "\n") for piece in path.read_text().split("'''")[1::2]]
    return tuple(normal_form(text)[0] for text in texts if text.strip())


def spoilt_texts(count: int, seed: int) -> Iterator[str]:
    """`count` texts in normal form: each a real one, most of them changed once or more."""
    source = random.Random(seed)
    made = 0
    while made < count:
        text = source.choice(real_texts())
        for _ in range(source.choice((0, 1, 1, 2, 3))):
            text = source.choice(CHANGES)(text, source)
        text, _ = normal_form(text)
        if text:
            made += 1
            yield text


def _repeat_lines(text: str, source: random.Random) -> str:
    lines = text.split("\n")
    return "\n".join(line for line in lines for _ in range(source.choice((1, 1, 1, 2, 3))))


def _repeat_paragraph(text: str, source: random.Random) -> str:
    paragraphs = text.split("\n\n")
    return "\n\n".join([*paragraphs, *[source.choice(paragraphs)] * source.randint(1, 4)])


def _repeat_words(text: str, source: random.Random) -> str:
    words = text.split(" ")
    start = source.randrange(len(words))
    piece = words[start : start + source.randint(1, 12)]
    return " ".join(words[:start] + piece * source.randint(2, 20) + words[start:])


def _put_lines(text: str, source: random.Random) -> str:
    lines = text.split("\n")
    for _ in range(source.randint(1, 4)):
        lines.insert(source.randint(0, len(lines)), source.choice(MEANT_LINES))
    return "\n".join(lines)


def _cut(text: str, source: random.Random) -> str:
    start = source.randrange(len(text))
    return text[start : start + source.choice((1, 5, 100, 300, 1_000))]


def _end_lines(text: str, source: random.Random) -> str:
    end = source.choice((".", "...", "…", "!", " ", '."'))
    return "\n".join(line + end if source.random() < 0.7 else line for line in text.split("\n"))


def _one_line(text: str, source: random.Random) -> str:
    return text.replace("\n", source.choice((" ", "\n\n", ".\n")))


def _bullets(text: str, source: random.Random) -> str:
    return "\n".join(source.choice(("- ", "• ", "  - ", "")) + line for line in text.split("\n"))


def _strange_characters(text: str, source: random.Random) -> str:
    other = source.choice(("é", "你", "…", "１", "_", "〈", "\u2028", "'", "’", "ß", "\ufffd", "🙂", "İ", "Σ"))
    return "".join(other if source.random() < 0.05 else character for character in text)


CHANGES: tuple[Callable[[str, random.Random], str], ...] = (
    _repeat_lines,
    _repeat_paragraph,
    _repeat_words,
    _put_lines,
    _put_lines,
    _cut,
    _end_lines,
    _end_lines,
    _one_line,
    _bullets,
    _strange_characters,
)
