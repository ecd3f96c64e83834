"""`marin export`: a token cache in the layout of another training program."""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from marin_assets.cli.main import Commands, Common
from marin_assets.cli.output import console, print_fields, print_json
from marin_assets.cli.targets import declared, find, open_store
from marin_core.artifact import ArtifactId, Store
from marin_core.errors import ConfigError, ExitCode

CACHE_FILE = "part.json"
LAYOUTS = ("flat", "megatron")


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "export",
        parents=[common.artifact, common.output],
        help="write a token cache as flat files or as Megatron's dataset",
        description="Write all parts of a token cache as one stream: 'flat' is tokens.bin, which numpy maps into memory, and offsets.bin; "
        "'megatron' is tokens.bin and tokens.idx. Every token is verified on the way.",
    )
    parser.add_argument("--format", choices=LAYOUTS, required=True, help="the layout")
    parser.add_argument("--to", metavar="FOLDER", type=Path, required=True, help="a new folder")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from marin_core.data.export.flat import export_flat
    from marin_core.data.export.megatron import export_megatron

    store = open_store()
    export = {"flat": export_flat, "megatron": export_megatron}[options.format]
    with _local(store, _parts(store, options.artifact)) as parts:
        exported = export(parts, options.to)
    if options.json:
        print_json(exported.model_dump(mode="json") | {"folder": str(options.to)})
    else:
        print_fields(
            console(),
            {
                "folder": str(options.to),
                "layout": exported.layout,
                "documents": f"{exported.documents:,}",
                "tokens": f"{exported.tokens:,} of {exported.dtype}",
                "digest": exported.digest,
            },
        )
    return ExitCode.DONE


def _parts(store: Store, target: str) -> Sequence[ArtifactId]:
    """What experiments declare comes first, since a part of it can be missing; else what the store holds."""
    try:
        return declared().artifacts([target])
    except ConfigError:
        return find(store, target).artifacts


@contextmanager
def _local(store: Store, artifacts: Sequence[ArtifactId]) -> Iterator[list[Path]]:
    """Folders of the artifacts' payloads, in partition order; what lies elsewhere is downloaded for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="marin-export-") as scratch:
        folders = []
        for number, artifact in enumerate(artifacts):
            record = store.record(artifact)
            if record is None or CACHE_FILE not in {file.path for file in record.files}:
                what = "isn't committed" if record is None else "is no token cache"
                raise ConfigError(f"{artifact} {what}", advice="Name a tokenized artifact, all parts of which are built.")
            folder = store.payload_path(record)
            if folder is None:
                folder = Path(scratch) / str(number)
                store.download(record, folder)
            folders.append(folder)
        yield folders
