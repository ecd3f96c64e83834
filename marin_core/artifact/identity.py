"""Names, versions and partition keys: what an artifact is called, and where that puts it."""

import re
from dataclasses import dataclass

from marin_core.errors import ConfigError

# A doubled or leading underscore is refused because Dagster derives one operation name from the parts joined by "__".
_NAME_PART = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_VERSION = re.compile(r"[A-Za-z0-9]+([._][A-Za-z0-9]+)*")
_PARTITION = re.compile(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*")

DEV = "dev"
"""The mutable version: rebuilt on request, and never an input of a fixed version."""


@dataclass(frozen=True, order=True)
class ArtifactId:
    """`name@version`, and for a member of a family its partition key.

    Raises:
        ConfigError: if a part could not be an address, an asset key and a URL at once.
    """

    name: str
    version: str
    partition: str | None = None

    def __post_init__(self) -> None:
        for part in self.name.split("/"):
            if not _NAME_PART.fullmatch(part):
                raise ConfigError(
                    f"artifact name {self.name!r}: part {part!r} is not allowed",
                    advice="Use lower-case letters, digits and single underscores, in parts joined by '/', "
                    "for example 'tokenized/python_code'.",
                )
        if not _VERSION.fullmatch(self.version):
            raise ConfigError(
                f"artifact {self.name!r}: version {self.version!r} is not valid",
                advice="Use a calendar version like '2026.11.29', a label like 'v1', or 'dev'.",
            )
        if self.partition is not None and not _PARTITION.fullmatch(self.partition):
            raise ConfigError(
                f"artifact {self.name}@{self.version}: partition key {self.partition!r} is not allowed",
                advice="Use letters and digits, joined by single '.', '_' or '-'.",
            )

    @classmethod
    def parse(cls, text: str) -> "ArtifactId":
        """Read what `str` wrote: `name@version` or `name@version/partition`."""
        name, at, rest = text.partition("@")
        if not at:
            raise ConfigError(f"{text!r} is no artifact", advice="Write it as name@version, for example raw/python_stdlib@v1.")
        version, slash, partition = rest.partition("/")
        return cls(name, version, partition if slash else None)

    @property
    def family(self) -> "ArtifactId":
        """The same artifact without its partition."""
        return ArtifactId(self.name, self.version)

    @property
    def path(self) -> str:
        """Address relative to the store's prefix."""
        return "/".join([self.name, self.version] + ([self.partition] if self.partition else []))

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" + (f"/{self.partition}" if self.partition else "")
