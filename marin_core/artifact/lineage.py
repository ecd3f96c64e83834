"""Lineage from the records alone: what an artifact was made from, and what was made from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.record import Record
from marin_core.artifact.store import Store


@dataclass(frozen=True)
class Link:
    """One reading of one artifact by another.

    Attributes:
        artifact: the far end: an input, or downstream a consumer.
        content_digest: content that was read, which may not be what is there now.
    """

    artifact: ArtifactId
    content_digest: str


@dataclass(frozen=True)
class Node:
    """An artifact in a lineage.

    Attributes:
        content_digest: what it holds now; None if it is not committed any more.
        links: its inputs, or downstream its consumers.
        is_cut: whether `links` were not followed because they lie beyond the depth.
    """

    artifact: ArtifactId
    content_digest: str | None
    links: tuple[Link, ...]
    is_cut: bool = False


@dataclass(frozen=True)
class Lineage:
    """Everything that is reached from the roots, nearest first; each artifact once."""

    roots: tuple[ArtifactId, ...]
    nodes: dict[ArtifactId, Node]


def upstream(store: Store, roots: Iterable[ArtifactId], depth: int | None = None) -> Lineage:
    """What the roots were made from.

    Args:
        depth: how many steps away to look; None = all.
    """
    lineage = Lineage(tuple(roots), {})
    level = list(lineage.roots)
    distance = 0
    while level:
        records = store.records(level)
        for artifact, record in records.items():
            links = tuple(Link(read.id, read.content_digest) for read in record.inputs) if record else ()
            lineage.nodes[artifact] = Node(
                artifact, record.content_digest if record else None, links, is_cut=distance == depth and bool(links)
            )
        following = (link.artifact for artifact in records for link in lineage.nodes[artifact].links if distance != depth)
        level = [artifact for artifact in dict.fromkeys(following) if artifact not in lineage.nodes]
        distance += 1
    return lineage


def downstream(records: Iterable[Record], roots: Iterable[ArtifactId], depth: int | None = None) -> Lineage:
    """What was made from the roots.

    Args:
        records: those of the whole store; only the links between them are held in memory.
        depth: how many steps away to look; None = all.
    """
    contents: dict[ArtifactId, str] = {}
    consumers: dict[ArtifactId, list[Link]] = {}
    for record in records:
        contents[record.id] = record.content_digest
        for read in record.inputs:
            consumers.setdefault(read.id, []).append(Link(record.id, read.content_digest))
    return _followed(contents, consumers, tuple(roots), depth)


def _followed(
    contents: Mapping[ArtifactId, str], consumers: Mapping[ArtifactId, list[Link]], roots: tuple[ArtifactId, ...], depth: int | None
) -> Lineage:
    lineage = Lineage(roots, {})
    level = list(roots)
    distance = 0
    while level:
        for artifact in level:
            links = tuple(sorted(consumers.get(artifact, ()), key=lambda link: link.artifact.path))
            lineage.nodes[artifact] = Node(artifact, contents.get(artifact), links, is_cut=distance == depth and bool(links))
        following = (link.artifact for artifact in level for link in lineage.nodes[artifact].links if distance != depth)
        level = [artifact for artifact in dict.fromkeys(following) if artifact not in lineage.nodes]
        distance += 1
    return lineage
