"""Pages as documents: what every format with HTML in it shares."""

from collections import Counter
from dataclasses import dataclass

from marin_core.data.formats.config import FromHtml
from marin_core.data.formats.items import RejectedError
from marin_core.data.transforms.child import Child, ChildError


@dataclass
class Pages:
    """Turns pages into text, in a child process.

    Attributes:
        config: how.
        notes: counts `repaired_charset`: pages some of whose bytes were invalid in every charset.
    """

    config: FromHtml
    notes: Counter[str]
    _child: Child | None = None

    def text(self, page: bytes, charset: str | None = None) -> tuple[str, str]:
        """(text, title) of a page.

        Raises:
            RejectedError: `html_empty`, `undecodable`, `extract_timeout`, `extract_memory` or `extract_crashed`.
        """
        if self._child is None:
            self._child = Child("html", self.config.cpu_seconds)
        request = {"to": self.config.to, "main_content": self.config.main_content, "links": self.config.links, "charset": charset}
        try:
            answer, text = self._child.call(request, page)
        except ChildError as error:
            raise RejectedError(extract_reason(error), error.detail) from None
        if answer["replaced"]:
            self.notes["repaired_charset"] += 1
        return text.decode(), answer["title"]

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.close()


def extract_reason(error: ChildError) -> str:
    """The reason under which a failed extraction is counted."""
    return f"extract_{error.reason}" if error.reason in ("timeout", "memory", "crashed") else error.reason
