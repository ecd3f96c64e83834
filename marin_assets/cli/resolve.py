"""`marin resolve`: the commit that a branch stands at now, to be written into an experiment."""

import argparse
import re

from marin_assets.cli.main import Commands, Common
from marin_assets.cli.output import console, print_json
from marin_core.errors import ConfigError

SOURCE = re.compile(r"hf:(?P<repository>[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)?)(?:@(?P<branch>[^@\s]+))?")


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "resolve",
        parents=[common.output],
        help="print the commit of a branch on the Hugging Face Hub",
        description="Ask the Hugging Face Hub which commit a branch or tag stands at (the default branch if none is given), and print what "
        "to write into the experiment. A branch moves, so an experiment names the commit.",
    )
    parser.add_argument("source", metavar="hf:OWNER/NAME[@BRANCH]", help="repository, and branch or tag")
    parser.add_argument("--type", choices=("dataset", "model"), default="dataset", help="kind of repository (default: dataset)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from marin_core.data.sources.hub_files import resolve_revision

    found = SOURCE.fullmatch(options.source)
    if found is None:
        raise ConfigError(f"{options.source!r} names no repository", advice="Write hf:OWNER/NAME or hf:OWNER/NAME@BRANCH.")
    repository, branch = found["repository"], found["branch"]
    revision = resolve_revision(repository, branch, options.type)
    fields = {"repository": repository, "revision": revision} | ({"repository_type": "model"} if options.type == "model" else {})
    if options.json:
        print_json({"repository": repository, "repository_type": options.type, "branch": branch, "revision": revision})
    else:
        written = ", ".join(f'{name}="{value}"' for name, value in fields.items())
        console().print(f"{revision}\n\nHubFiles({written})", soft_wrap=True)
    return 0
