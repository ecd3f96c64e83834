"""How much may be read from buckets of other regions, which is slow and paid for by the byte: a limit, and a refusal beyond it.

A machine that says its region is held to the limit; one that doesn't, such as a laptop, isn't. Only buckets of Google Cloud Storage have
a location here.
"""

import os
from dataclasses import dataclass, field
from functools import cache

from marin_core.artifact.objects import GcsObjects
from marin_core.errors import ConfigError

REGION_VARIABLE = "MARIN_REGION"
"""This machine's region, such as `us-central1`."""
LIMIT_VARIABLE = "MARIN_CROSS_REGION_GIB"
LIMIT_GIB = 10.0

DUAL_REGIONS = {
    "asia1": ("asia-northeast1", "asia-northeast2"),
    "eur4": ("europe-north1", "europe-west4"),
    "eur5": ("europe-west1", "europe-west2"),
    "eur7": ("europe-west2", "europe-west3"),
    "eur8": ("europe-west3", "europe-west6"),
    "nam4": ("us-central1", "us-east1"),
}
"""Predefined pairs (cloud.google.com/storage/docs/locations); others name their regions in the bucket's metadata."""
MULTI_REGIONS = {"asia": "asia-", "eu": "europe-", "us": "us-"}
"""A multi-region counts as near to every region of its name."""


@dataclass
class EgressGuard:
    """Adds up what one reader takes from other regions, and refuses what would go beyond its limit before a byte of it is read.

    Attributes:
        region: this machine's; empty = nobody knows, and nothing is refused.
        limit_gib: how much all reads together may take from buckets of other regions, or of none that this account may ask for.
        taken_bytes: what they have taken.

    Raises:
        ConfigError: the limit in the environment is no number.
    """

    region: str = field(default_factory=lambda: os.environ.get(REGION_VARIABLE, "").strip().lower())
    limit_gib: float = field(default_factory=lambda: _limit())
    taken_bytes: int = 0

    def require(self, url: str, size: int, what: str) -> None:
        """Ask for `size` bytes of something that lies at a URL.

        Raises:
            ConfigError: they would cross regions, and with what was read before they are more than the limit.
            InfrastructureError: the bucket's location can't be asked for now.
        """
        if not self.region or not url.startswith(("gs://", "gcs://")):
            return
        bucket = url.split("://", 1)[1].split("/", 1)[0]
        locations = bucket_locations(bucket)
        if is_near(self.region, locations):
            return
        gib = (self.taken_bytes + size) / 2**30
        if gib > self.limit_gib:
            where = f"in {', '.join(locations)}" if locations else "in a location that this account may not ask for"
            before = f", with the {self.taken_bytes / 2**30:.1f} GiB before it" if self.taken_bytes else ""
            raise ConfigError(
                f"{what} is {size / 2**30:.1f} GiB in the bucket {bucket}, which lies {where}, and this machine is in {self.region}: "
                f"{gib:.1f} GiB would cross regions{before}, and {self.limit_gib:g} may",
                advice=f"Run it in the bucket's region, copy the data to a bucket of this one, or set {LIMIT_VARIABLE} and pay for it.",
            )
        self.taken_bytes += size


def _limit() -> float:
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        limit = float(text) if text else LIMIT_GIB
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise ConfigError(f"{LIMIT_VARIABLE} is {text!r}", advice="Give a number of GiB, such as 10; 0 refuses every byte.")
    return limit


def is_near(region: str, locations: tuple[str, ...]) -> bool:
    """Whether a bucket in these locations (a region, the two of a pair, or a multi-region) has a copy near a region; both lower case."""
    return any(region in DUAL_REGIONS.get(each, (each,)) or region.startswith(MULTI_REGIONS.get(each, "\n")) for each in locations)


@cache
def bucket_locations(bucket: str) -> tuple[str, ...]:
    """Where a bucket lies (`GcsObjects.locations`), asked for once.

    Raises:
        InfrastructureError: the store doesn't answer.
    """
    return GcsObjects(f"gs://{bucket}").locations()
