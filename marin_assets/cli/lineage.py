"""`marin lineage`: what an artifact was made from, or what was made from it."""

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from marin_assets.cli.main import Commands, Common, positive
from marin_assets.cli.output import console, plain, print_json, short
from marin_assets.cli.targets import Today, find, open_store
from marin_core.artifact import ArtifactId
from marin_core.artifact.lineage import Lineage, Link, Node, downstream, upstream
from marin_core.errors import ConfigError, ExitCode

SHOWN_DEPTH = 40
"""Steps that are shown unless more are asked for: each is indented further."""

SHOWN_MEMBERS = 4
"""Members of one family below one artifact; of more, the first ones are shown."""

Drift = Callable[[ArtifactId], str | None]
"""`own`, `inherited` or `none`; None for what no experiment declares any more."""


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "lineage",
        parents=[common.artifact, common.output],
        help="show what an artifact was made from, or what was made from it",
        description="Show, from the records in the store, what an artifact was made from, each with the beginning of its content digest. "
        "What several artifacts read is followed once, where it is nearest.",
    )
    parser.add_argument("--downstream", action="store_true", help="show what was made from it; reads the records of the whole store")
    parser.add_argument("--depth", type=positive, metavar="N", help=f"steps to follow (default: all, of which {SHOWN_DEPTH} are shown)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    store = open_store()
    roots = find(store, options.artifact).artifacts
    depth = options.depth if options.json or options.depth else SHOWN_DEPTH
    if options.downstream:
        from marin_core.artifact.inventory import committed

        lineage = downstream(committed(store), roots, depth)
    else:
        lineage = upstream(store, roots, depth)
        if all(lineage.nodes[root].content_digest is None for root in roots):
            raise ConfigError(f"{options.artifact} is not committed", advice=f"`marin show {options.artifact}` lists the attempts.")
    drift = Today(store).drift
    if options.json:
        print_json(document(lineage, options.artifact, drift, downstream=options.downstream, depth=options.depth))
    else:
        print_lineage(console(), lineage, drift, downstream=options.downstream)
    return ExitCode.DONE


# For people ------------------------------------------------------------------------------------------------------------


def print_lineage(out: Console, lineage: Lineage, drift: Drift, *, downstream: bool) -> None:
    """One tree for each root, without recursion: what is nearest to the roots is placed first, and everything once."""
    placed = {root: Tree(_label(lineage.nodes[root], None, drift, downstream=downstream)) for root in lineage.roots}
    roots = list(placed.values())
    waiting = deque((root, 1) for root in lineage.roots)
    deepest = 1
    while waiting:
        artifact, depth = waiting.popleft()
        deepest = max(deepest, depth)
        for link in _shown(placed[artifact], lineage.nodes[artifact]):
            if link.artifact in placed:
                placed[artifact].add(_reference(lineage.nodes[link.artifact], link, downstream=downstream))
                continue
            placed[link.artifact] = placed[artifact].add(_label(lineage.nodes[link.artifact], link, drift, downstream=downstream))
            waiting.append((link.artifact, depth + 1))
    for root in roots:
        if deepest <= SHOWN_DEPTH:
            out.print(root)
        else:
            out.file.writelines(f"{line}\n" for line in _lines(root))


def _lines(root: Tree) -> Iterator[str]:
    """A tree deeper than a page is wide, as plain lines that nothing folds."""
    yield str(root.label)
    waiting = [("", child, child is root.children[-1]) for child in reversed(root.children)]
    while waiting:
        indent, tree, is_last = waiting.pop()
        yield f"{indent}{'└── ' if is_last else '├── '}{tree.label}"
        below = indent + ("    " if is_last else "│   ")
        waiting.extend((below, child, child is tree.children[-1]) for child in reversed(tree.children))


def _shown(branch: Tree, node: Node) -> Sequence[Link]:
    """Links that get a line; what is left out is counted."""
    if node.is_cut:
        branch.add(Text(f"… {len(node.links)} more, which a larger --depth shows", "dim"))
        return ()
    members: dict[ArtifactId, list[Link]] = {}
    for link in node.links:
        members.setdefault(link.artifact.family, []).append(link)
    shown: list[Link] = []
    for family, links in members.items():
        shown.extend(links if len(links) <= SHOWN_MEMBERS + 1 else links[:SHOWN_MEMBERS])
        if len(links) > SHOWN_MEMBERS + 1:
            branch.add(Text(f"… {len(links) - SHOWN_MEMBERS} more of {family}, which --json lists", "dim"))
    return shown


def _label(node: Node, link: Link | None, drift: Drift, *, downstream: bool) -> Text:
    text = Text(plain(node.artifact), "bold")
    if node.content_digest is None:
        text.append("  not committed any more", "red")
    else:
        text.append(f"  {short(node.content_digest)}")
    mark = {"own": "drifted", "inherited": "inherits drift"}.get(drift(node.artifact) or "")
    if mark:
        text.append(f"  {mark}", "yellow")
    if link is not None and not downstream and node.content_digest not in (None, link.content_digest):
        text.append(f"  was read as {short(link.content_digest)}", "yellow")
    return text


def _reference(node: Node, link: Link, *, downstream: bool) -> Text:
    text = Text(plain(link.artifact)).append("  (shown elsewhere)", "dim")
    if not downstream and node.content_digest not in (None, link.content_digest):
        text.append(f"  was read as {short(link.content_digest)}", "yellow")
    return text


# For programs ----------------------------------------------------------------------------------------------------------


def document(lineage: Lineage, artifact: str, drift: Drift, *, downstream: bool, depth: int | None) -> dict[str, Any]:
    """The lineage as JSON (docs/reference/cli.md)."""
    return {
        "artifact": artifact,
        "direction": "downstream" if downstream else "upstream",
        "depth": depth,
        "roots": [str(root) for root in lineage.roots],
        "nodes": [
            {
                "artifact": str(node.artifact),
                "content_digest": node.content_digest,
                "drift": drift(node.artifact) if node.content_digest else None,
                "links": [{"artifact": str(link.artifact), "content_digest": link.content_digest} for link in node.links],
                "cut": node.is_cut,
            }
            for node in lineage.nodes.values()
        ],
    }
