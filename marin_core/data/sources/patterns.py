"""Which paths of a source a glob means."""

import re
from collections.abc import Sequence

from fsspec.utils import glob_translate


class Patterns:
    """Paths that match any of some globs: `*` and `?` stay in one folder, `**` spans any number of them."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._expressions = [re.compile(glob_translate(pattern)) for pattern in patterns]

    def __contains__(self, path: str) -> bool:
        return any(expression.match(path) for expression in self._expressions)
