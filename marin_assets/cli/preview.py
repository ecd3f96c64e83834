"""`marin preview`: what rules would keep and drop of a sample, before anything is built."""

import argparse
import json
import subprocess
import sys
from typing import Any

from marin_assets.cli.main import Commands, Common, positive
from marin_assets.cli.output import Sheet, console, print_json, size
from marin_assets.cli.targets import declared, open_store
from marin_core.artifact import ArtifactStep
from marin_core.errors import ConfigError, ExitCode, MarinError, told_error
from marin_core.experiment.jobs import ConsolidateJob

SAMPLE = 10_000


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "preview",
        parents=[common.output],
        help="show what rules would keep and drop of a sample of documents",
        description="Apply the rules that an experiment declares for a consolidated family to a random sample of its documents. Documents "
        "and attributes must be built; nothing is written, so thresholds can be tried in the experiment file.",
    )
    parser.add_argument("target", metavar="TARGET", help="a family made by `consolidated`: name or name@version")
    parser.add_argument("--sample", type=positive, metavar="N", default=SAMPLE, help=f"documents to look at (default {SAMPLE})")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    step = _step(options.target)
    answer = _ask(_request(step, options.sample))
    if options.json:
        print_json({"artifact": str(step.id), **answer})
        return ExitCode.DONE
    out = console()
    tables = answer["tables"]
    out.print(f"{step.id}: {answer['documents']:,} documents looked at, nothing written")
    weighed = bool(tables["reasons"]) and "tokens" in tables["reasons"][0]
    reasons = Sheet("reasons", "outcome", "reason", "documents", "share", "bytes", "share", *(("tokens", "share") if weighed else ()))
    for row in tables["reasons"]:
        tokens = (f"{row['tokens']:,}", f"{row['share_of_tokens']:.2%}") if weighed else ()
        shares = (f"{row['documents']:,}", f"{row['share']:.2%}", size(row["bytes"]), f"{row['share_of_bytes']:.2%}")
        reasons.add(row["outcome"], row["reason"], *shares, *tokens)
    samples = Sheet("samples", "outcome", "reason", "id", "text")
    for row in tables["samples"]:
        samples.add(row["outcome"], row["reason"], row["id"], row["text"])
    out.print(reasons)
    out.print(samples)
    return ExitCode.DONE


def _step(target: str) -> ArtifactStep:
    known = declared()
    families = {artifact.family for artifact in known.artifacts([target])}
    if len(families) != 1:
        raise ConfigError(f"{target!r} names {len(families)} artifacts", advice="Name one family: name@version.")
    step = known.graph[families.pop()]
    if not isinstance(step.symbolic_config, ConsolidateJob):
        raise ConfigError(
            f"{step.id} is made by the job {step.job!r}, which decides while it reads its source",
            advice="A preview needs a family made by `consolidated`, whose documents and attributes are built.",
        )
    return step


def _request(step: ArtifactStep, sample: int) -> dict[str, Any]:
    """What the other process is asked: artifacts by name, as the store may be anywhere."""
    prefix = open_store().prefix
    documents, *attributes = (dep for dep in step.deps if dep is not step.base)
    shards = []
    for key in step.partitions:
        config = step.config(prefix, key)
        assert isinstance(config, ConsolidateJob)  # noqa: S101
        shards.append(
            {
                "documents": {"artifact": str(step.reads(documents, key)[0])},
                "attributes": [
                    {"artifact": str(step.reads(dep, key)[0]), "below": each.below}
                    for dep, each in zip(attributes, config.attributes, strict=True)
                ],
            }
        )
    config = step.symbolic_config
    assert isinstance(config, ConsolidateJob)  # noqa: S101
    return {"prefix": prefix, "shards": shards, "consolidate": config.consolidate.model_dump(mode="json"), "sample": sample}


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "marin_core.data.preview"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise MarinError(f"The preview ended with code {done.returncode}: {done.stderr[-300:]}", advice="Report this defect.") from None
    if "error" in answer:
        raise told_error(done.returncode, answer["error"]["message"], answer["error"]["advice"])
    return answer
