"""Sizes above which input is set aside or refused."""

from pydantic import Field

from marin_core.config import Config

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class Limits(Config):
    """Sizes above which input is set aside or refused (bytes)."""

    record_bytes: int = Field(default=64 * MIB, ge=KIB)
    text_bytes: int = Field(default=16 * MIB, ge=1)
    metadata_bytes: int = Field(default=64 * KIB, ge=2)
    shard_bytes: int = Field(default=GIB, ge=KIB)
    bomb_ratio: int = Field(default=200, ge=1)
    """Largest allowed ratio of expanded to compressed size once `bomb_floor_bytes` are out."""
    bomb_floor_bytes: int = Field(default=64 * MIB, ge=KIB)
