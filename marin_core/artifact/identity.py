"""Names, versions and partition keys: what an artifact is called, and where that puts it."""

import re
from dataclasses import dataclass
from functools import lru_cache

from marin_core.errors import ConfigError

# A doubled or leading underscore is refused because Dagster derives one operation name from the parts joined by "__".
_NAME_PART = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_VERSION = re.compile(r"[A-Za-z0-9]+([._][A-Za-z0-9]+)*")
_PARTITION = re.compile(r"(?!(?i:attempt-))[A-Za-z0-9]+([._-][A-Za-z0-9]+)*")  # `attempt-N` are folders of the store itself

LONGEST_PART = 63
"""Characters of a part of a name, a version or a partition key: the longest value of a Dagster tag and of a Kubernetes label."""

LONGEST_PATH = 512
"""Characters of a whole address below the prefix; an object's name has at most 1,024 bytes on Google Cloud Storage, its file included."""

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
        for part in (self.name, self.version, "" if self.partition is None else self.partition):
            if not isinstance(part, str):
                raise ConfigError(
                    f"{part!r} in the identity of an artifact is {type(part).__name__}, not text", advice="Put it in quotes, like 'v1'."
                )
        _check(self.name, self.version, self.partition)

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
        return self if self.partition is None else ArtifactId(self.name, self.version)

    @property
    def path(self) -> str:
        """Address relative to the store's prefix."""
        return "/".join([self.name, self.version] + ([self.partition] if self.partition else []))

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" + (f"/{self.partition}" if self.partition else "")


@lru_cache(maxsize=100_000)
def _check(name: str, version: str, partition: str | None) -> None:
    """Remembered, since reading a graph's records makes the same ids over and over."""
    for part in name.split("/"):
        if not _NAME_PART.fullmatch(part) or len(part) > LONGEST_PART:
            raise ConfigError(
                f"artifact name {name!r}: part {part!r} is not allowed",
                advice="Use lower-case letters, digits and single underscores, in parts joined by '/' "
                f"of at most {LONGEST_PART} characters, for example 'tokenized/python_code'.",
            )
    if not _VERSION.fullmatch(version) or len(version) > LONGEST_PART:
        raise ConfigError(
            f"artifact {name!r}: version {version!r} is not valid",
            advice=f"Use a calendar version like '2026.11.29', a label like 'v1', or 'dev'; at most {LONGEST_PART} characters.",
        )
    if partition is not None and (not _PARTITION.fullmatch(partition) or len(partition) > LONGEST_PART):
        raise ConfigError(
            f"artifact {name}@{version}: partition key {partition!r} is not allowed",
            advice=f"Use letters and digits, joined by single '.', '_' or '-', at most {LONGEST_PART} characters, but not 'attempt-…'.",
        )
    if len(name) + len(version) + len(partition or "") > LONGEST_PATH:
        raise ConfigError(
            f"artifact name {name[:40]!r}… has an address of more than {LONGEST_PATH} characters", advice="Use fewer or shorter parts."
        )
