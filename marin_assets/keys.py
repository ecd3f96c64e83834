"""Artifact identity ↔ Dagster asset key, reversible."""

import dagster as dg

from marin_core.artifact import ArtifactId


def asset_key(artifact: ArtifactId) -> dg.AssetKey:
    """`tokenized/web@v1` → `["tokenized", "web-v1"]`: Dagster refuses `@`, and its graph shows a node's last part alone."""
    *folders, last = artifact.name.split("/")
    return dg.AssetKey([*folders, f"{last}-{artifact.version}"])


def artifact_id(key: dg.AssetKey) -> ArtifactId:
    """The inverse of `asset_key`; name parts hold no dash, so the first one splits name from version."""
    *folders, last = key.path
    name, _, version = last.partition("-")
    return ArtifactId("/".join([*folders, name]), version)
