"""Lists of words: those that come with datatrove's URL filter, or an artifact's."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from marin_core.errors import DataError

DATATROVE_LISTS = ("banned_words.txt", "banned_subwords.txt", "soft_banned_words.txt")


def datatrove_assets() -> Path:
    """The folder of datatrove's word and URL lists.

    Raises:
        DataError: the installed package has none.
    """
    spec = find_spec("datatrove")
    folders = [Path(place) / "assets" for place in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        if all((folder / name).is_file() for name in DATATROVE_LISTS):
            return folder
    raise DataError("datatrove comes without its word lists", advice="Install datatrove 0.10.1, or name word lists of your own.")


def read_words(files: Iterable[Path]) -> list[str]:
    """Words and phrases of text files, one a line, case-folded, sorted and distinct; lines that begin with `#` are comments.

    Raises:
        DataError: a file can't be read, or there is no word in any.
    """
    words = set()
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise DataError(f"word list {path.name!r} can't be read ({error})", advice="Use UTF-8 text, one word a line.") from error
        words |= {line.strip().casefold() for line in lines if line.strip() and not line.startswith("#")}
    if not words:
        raise DataError("the word lists hold no word", advice="Name a folder with text files of one word a line.")
    return sorted(words)
