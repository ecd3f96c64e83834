"""A mixture: which components in which exact proportions, with a ledger of every part that may be read."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from marin_core.artifact.canonical import canonical_json
from marin_core.config import Config
from marin_core.data.cache import LedgerPart, ledger_of
from marin_core.data.config import MixtureConfig
from marin_core.data.files import write_json
from marin_core.data.part import PartInfo, PartPolicy, PartTokenizer, read_info, same_tokens
from marin_core.data.permutation import UNIT, integer_weights
from marin_core.errors import ConfigError, DataError
from marin_core.report import Check, Report, Reporter, Scalar

MIXTURE_FILE = "mixture.json"
MIXTURE_SCHEMA = "mixture/1"
PLOT_FILE = "composition.png"


class Component(Config):
    """One component of a mixture.

    Attributes:
        weight: as configured.
        integer_weight: its share of 2^40; all of them sum to 2^40.
        sequences: whole sequences in one epoch; the last tokens, fewer than a sequence, are not used.
        parts: the ledger, in the order of the logical stream.
    """

    weight: float
    integer_weight: int = Field(ge=0)
    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    bytes: int = Field(ge=0)
    sequences: int = Field(ge=0)
    licenses: tuple[str, ...]
    parts: tuple[LedgerPart, ...] = Field(min_length=1)


class Mixture(Config):
    """Content of `mixture.json`; components in name order."""

    sequence_length: int = Field(ge=2)
    seed: int = Field(ge=0)
    window_blocks: int = Field(ge=1)
    block_sequences: int = Field(ge=1)
    tokenizer: PartTokenizer
    bos_id: int
    eos_id: int
    pad_id: int
    policy: PartPolicy
    components: dict[str, Component] = Field(min_length=1)


def make_mixture(config: MixtureConfig, components: Mapping[str, Sequence[Path]], output: Path, reporter: Reporter) -> Report:
    """Write `mixture.json` and a picture of the composition.

    Args:
        components: name → folders of the parts of its token cache, in stream order; the names of `config.weights`.

    Raises:
        ConfigError: if names and weights don't match, tokenizers or policies are mixed, a component may not be used for training, is
            a held-out split, or has fewer tokens than one sequence.
        DataError: if a part is missing or broken.
    """
    _same_names(config, components)
    infos = {name: [read_info(part) for part in components[name]] for name in sorted(components)}
    same_tokens({f"{name}/{info.part}": info for name, parts in infos.items() for info in parts})
    for name, parts in infos.items():
        _refuse_unusable(config, name, parts)
    mixture = _mixture(config, infos)
    output.mkdir(parents=True, exist_ok=True)
    content = {"schema": MIXTURE_SCHEMA} | mixture.model_dump(mode="json")
    write_json(output / MIXTURE_FILE, content)
    rows = [_row(config, name, component) for name, component in mixture.components.items()]
    _plot(rows, output / PLOT_FILE)
    reporter.log(f"mixture of {len(rows)} components")
    tokens = sum(component.tokens for component in mixture.components.values())
    metrics: dict[str, Scalar] = {"components": len(rows), "tokens": tokens, "tokenizer_digest": mixture.tokenizer.digest}
    metrics |= {f"share/{row['component']}": row["share"] for row in rows}
    total = sum(component.integer_weight for component in mixture.components.values())
    return Report(
        metrics=metrics,
        tables={"components": rows},
        plots={"composition": output / PLOT_FILE},
        checks=[Check("weights_sum_to_one", total == UNIT, "integer weights sum to 2^40", {"sum": total})],
        content_digest=hashlib.sha256(canonical_json(content)).hexdigest(),
    )


def read_mixture(folder: Path) -> Mixture:
    """Read and check `mixture.json`.

    Raises:
        DataError: if it is missing or broken.
        ConfigError: if it was written in another schema; names both.
    """
    path = folder / MIXTURE_FILE
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        schema = content.pop("schema")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"{str(path)!r} is not a readable mixture ({error})", advice="Make the mixture again.") from error
    if schema != MIXTURE_SCHEMA:
        raise ConfigError(f"mixture has schema {schema!r}, this reader knows {MIXTURE_SCHEMA!r}", advice="Make the mixture again.")
    content["components"] = dict(sorted(content["components"].items()))
    return Mixture.from_json(content)


def _same_names(config: MixtureConfig, components: Mapping[str, Sequence[Path]]) -> None:
    for name in sorted(config.weights.keys() ^ components.keys()):
        missing = "has no tokenized component" if name in config.weights else "has no weight"
        raise ConfigError(
            f"field 'weights': {name!r} {missing}",
            advice=f"Weights and components must have the same names; components are {', '.join(sorted(components)) or 'none'}.",
        )


def _refuse_unusable(config: MixtureConfig, name: str, parts: Sequence[PartInfo]) -> None:
    for info in parts:
        if forbidden := sorted(set(info.policies) - {"TRAINING_ALLOWED"}):
            raise ConfigError(
                f"component {name!r}, part {info.part!r} has policy {forbidden[0]}", advice="Only TRAINING_ALLOWED sources may be mixed."
            )
        if info.split == "held_out":
            raise ConfigError(
                f"component {name!r}, part {info.part!r} is a held-out split",
                advice="Mix parts of split 'train' or 'all'; keep this for evaluation.",
            )
    tokens = sum(info.tokens for info in parts)
    if tokens < config.sequence_length and (config.weights[name] > 0 or not parts):
        raise ConfigError(
            f"component {name!r} has {tokens} tokens, fewer than one sequence of {config.sequence_length}",
            advice=f"Set sequence_length to at most {max(2, tokens)}, or leave the component out.",
        )


def _mixture(config: MixtureConfig, infos: Mapping[str, Sequence[PartInfo]]) -> Mixture:
    first = next(iter(infos.values()))[0]
    integers = dict(zip(infos, integer_weights([config.weights[name] for name in infos]), strict=True))
    components = {}
    for name, parts in infos.items():
        tokens = sum(info.tokens for info in parts)
        components[name] = Component(
            weight=config.weights[name],
            integer_weight=integers[name],
            tokens=tokens,
            documents=sum(info.documents for info in parts),
            bytes=sum(info.bytes for info in parts),
            sequences=tokens // config.sequence_length,
            licenses=tuple(sorted({license for info in parts for license in info.licenses})),
            parts=tuple(ledger_of(info) for info in parts),
        )
    return Mixture(
        sequence_length=config.sequence_length,
        seed=config.seed,
        window_blocks=config.window_blocks,
        block_sequences=config.block_sequences,
        tokenizer=first.tokenizer,
        bos_id=first.bos_id,
        eos_id=first.eos_id,
        pad_id=first.pad_id,
        policy=first.policy,
        components=components,
    )


def _row(config: MixtureConfig, name: str, component: Component) -> dict[str, Scalar]:
    """A row of the table for people; `first_epoch_tokens` is how far training goes before this component repeats (−1 = never used)."""
    share = component.integer_weight / UNIT
    used = component.sequences * config.sequence_length
    return {
        "component": name,
        "share": round(share, 6),
        "tokens": component.tokens,
        "documents": component.documents,
        "bytes": component.bytes,
        "sequences": component.sequences,
        "bytes_per_token": round(component.bytes / max(1, component.tokens), 4),
        "first_epoch_tokens": used * UNIT // component.integer_weight if component.integer_weight else -1,
        "licenses": ", ".join(component.licenses),
    }


def _plot(rows: Sequence[Mapping[str, Scalar]], path: Path) -> None:
    """Bars: share of training against share of the tokens that exist, the 30 largest components."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    total = max(1, sum(int(row["tokens"]) for row in rows))
    shown = sorted(rows, key=lambda row: (-float(row["share"]), str(row["component"])))[:30][::-1]
    figure = Figure(figsize=(6, 1.2 + 0.35 * len(shown)), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = range(len(shown))
    axes.barh([place + 0.2 for place in places], [float(row["share"]) for row in shown], height=0.4, label="share of training")
    axes.barh(
        [place - 0.2 for place in places], [int(row["tokens"]) / total for row in shown], height=0.4, label="share of tokens", color="0.7"
    )
    axes.set_yticks(list(places), [str(row["component"]) for row in shown])
    axes.set_xlim(0, 1)
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Software": None})
