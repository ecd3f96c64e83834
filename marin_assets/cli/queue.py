"""`marin queue`: what waits in the cluster's queue, for what, and why; and pausing a job there."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from marin_assets.cli.main import Commands, Common
from marin_assets.cli.output import console, new_table, print_json
from marin_assets.place import LAUNCHER_VARIABLE, LOCAL, PROFILE_VARIABLE, default_launcher, default_prefix
from marin_core.errors import ConfigError

if TYPE_CHECKING:
    from marin_assets.launch.kubernetes.queue import QueueEntry


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "queue",
        parents=[common.output],
        help="show what waits in the cluster's queue, and why",
        description="Show the jobs in the queue of this deployment's cluster: first those that have what they asked for, then those that "
        f"wait, in the order in which they will go. The cluster is that of {PROFILE_VARIABLE}.",
    )
    parser.add_argument("pool", nargs="?", metavar="POOL", help="only what runs in this pool of the profile, or waits for what it has")
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--pause", metavar="JOB", help="have a job save and end, and others take its place, until it is unpaused")
    change.add_argument("--unpause", metavar="JOB", help="queue a paused job again")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from marin_assets.launch.kubernetes import open_kubernetes_launcher

    profile = default_launcher()
    if profile == LOCAL:
        raise ConfigError(
            "this deployment launches jobs on its own machine, where nothing queues",
            advice=f"Set {LAUNCHER_VARIABLE}=kubernetes, and {PROFILE_VARIABLE} to the profile of a cluster.",
        )
    launcher = open_kubernetes_launcher(profile, default_prefix())
    if options.pause:
        launcher.pause(launcher.handle(options.pause))
    elif options.unpause:
        launcher.unpause(launcher.handle(options.unpause))
    entries = launcher.queue(options.pool)
    if options.json:
        print_json({"cluster": launcher.profile.name, "namespace": launcher.profile.namespace, "jobs": [asdict(each) for each in entries]})
    else:
        _print(launcher.host, entries)
    return 0


def _print(host: str, entries: Sequence["QueueEntry"]) -> None:
    sheet = new_table(f"queue of {host}", "place", "job", "priority", "asks for", "since", "why", "builds")
    for each in entries:
        asks = ", ".join(f"{resource} {amount}" for resource, amount in each.asks.items())
        place = {0: "-", None: "?"}.get(each.position, each.position)
        sheet.add(place, each.name, each.priority, asks, each.since, each.why, each.address or "-")
    console().print(sheet)
