"""`run.json`: what run a directory belongs to."""

import json
import shutil
from pathlib import Path
from uuid import uuid4

from marin_core.config import Config
from marin_core.distributed import BARRIER_SECONDS, barrier, is_lead
from marin_core.errors import ConfigError
from marin_core.train.checkpoint.metadata import METADATA_FILE, link_checkpoint
from marin_core.train.config import TrainConfig


class RunRecord(Config):
    """Written once, when a run starts in an empty directory; a resumed run must match it."""

    fingerprint: str
    run_name: str
    tracker_run_id: str
    config: TrainConfig


def open_run(run_dir: Path, config: TrainConfig, *, fingerprint: str, run_name: str) -> RunRecord:
    """Read the record of a run that resumes, or write that of a new one; of several processes the first writes it.

    Raises:
        ConfigError: if the directory belongs to a run with another fingerprint.
    """
    path = run_dir / "run.json"
    if is_lead() and not path.exists():
        record = RunRecord(fingerprint=fingerprint, run_name=run_name, tracker_run_id=uuid4().hex[:16], config=config)
        run_dir.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".json.new")
        scratch.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
        scratch.replace(path)
    barrier("run record", BARRIER_SECONDS)
    record = read_run(run_dir)
    if record.fingerprint != fingerprint:
        raise ConfigError(
            f"{run_dir} holds run {record.run_name!r} with fingerprint {record.fingerprint}, not {run_name!r} with {fingerprint}",
            advice="Give the changed run a new version, or delete the directory to train from the start.",
        )
    return record


def carry_over_run(previous: Path, run_dir: Path) -> None:
    """Begin a run's new directory with what an interrupted one left for good: committed checkpoints, metrics, tracker files.

    Checkpoints are hard links, since nobody rewrites them; everything else is copied, so that a process that still writes to the old
    directory can't reach the new one. Checkpoints in the making stay behind.
    """
    for path in previous.iterdir():
        if path.name == "checkpoints":
            (run_dir / "checkpoints").mkdir()
            for checkpoint in path.iterdir():
                if (checkpoint / METADATA_FILE).exists():
                    link_checkpoint(checkpoint, run_dir / "checkpoints" / checkpoint.name)
        elif path.is_dir():
            shutil.copytree(path, run_dir / path.name, symlinks=True)
        elif not path.name.endswith(".new"):  # it was about to be renamed, or sent
            shutil.copy2(path, run_dir / path.name)


def read_run(run_dir: Path) -> RunRecord:
    """The record of an existing run.

    Raises:
        ConfigError: if the directory holds none, or not one of this version.
    """
    path = run_dir / "run.json"
    if not path.exists():
        raise ConfigError(f"{run_dir} holds no training run (no run.json)", advice="Pass the directory that `train` was given.")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is no valid JSON: {error}", advice="Restore the file, or delete the directory to start over.") from error
    return RunRecord.from_json(values)
