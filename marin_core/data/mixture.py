"""A mixture: which components in which exact proportions, with a ledger of every part that may be read."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from marin_core.artifact.canonical import canonical_json
from marin_core.config import Config
from marin_core.data.cache import LedgerPart, ledger_of
from marin_core.data.composition import Budget, budget_rows, enough_data, weights_by_tokens
from marin_core.data.config import MixtureConfig, Pack, PhaseConfig, Stop
from marin_core.data.files import write_json
from marin_core.data.packing import PackingInfo, pack
from marin_core.data.part import PartInfo, PartPolicy, PartTokenizer, read_info, same_tokens
from marin_core.data.permutation import UNIT, integer_weights
from marin_core.errors import ConfigError, DataError
from marin_core.report import Check, Report, Reporter, Scalar

MIXTURE_FILE = "mixture.json"
MIXTURE_SCHEMA = "mixture/2"
PLOT_FILE = "composition.png"
PACKING_FOLDER = "packing"


class Component(Config):
    """One component of a mixture.

    Attributes:
        sequences: in one epoch; of a stream whole ones: its last tokens, fewer than a sequence, are not used.
        parts: the ledger, in the order of the logical stream.
        packing: of documents into sequences; None where they are cut from the stream.
    """

    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    bytes: int = Field(ge=0)
    sequences: int = Field(ge=0)
    licenses: tuple[str, ...]
    parts: tuple[LedgerPart, ...] = Field(min_length=1)
    packing: PackingInfo | None = None


class Phase(PhaseConfig):
    """Weights that hold from one step of a run on, for every component.

    Attributes:
        weights: as configured.
        integer_weights: shares of 2^40, which sum to 2^40.
    """

    integer_weights: dict[str, Annotated[int, Field(ge=0)]] = Field(min_length=1)


class Mixture(Config):
    """Content of `mixture.json`; components in name order, phases in that of their starts, the first from 0."""

    sequence_length: int = Field(ge=2)
    seed: int = Field(ge=0)
    window_blocks: int = Field(ge=1)
    block_sequences: int = Field(ge=1)
    stop: Stop
    max_epochs: float = Field(gt=0)
    target_tokens: int | None
    mask_bos_target: bool
    pack: Pack
    phases: tuple[Phase, ...] = Field(min_length=1)
    tokenizer: PartTokenizer
    bos_id: int
    eos_id: int
    pad_id: int
    policy: PartPolicy
    components: dict[str, Component] = Field(min_length=1)

    @model_validator(mode="after")
    def _phases_weigh_all_components(self) -> Self:
        for phase in self.phases:
            if phase.integer_weights.keys() != self.components.keys() or sum(phase.integer_weights.values()) != UNIT:
                raise ValueError(f"integer_weights of the phase from {phase.start} on must be of all components and sum to 2^40")
        if self.phases[0].start != "0":
            raise ValueError(f"phases begin at {self.phases[0].start}, not with the run")
        return self


def make_mixture(config: MixtureConfig, components: Mapping[str, Sequence[Path]], output: Path, reporter: Reporter) -> Report:
    """Write `mixture.json` and a picture of the composition.

    Args:
        components: name → folders of the parts of its token cache, in stream order; the names in the weights of all phases. With a
            `temperature` their weights follow from the tokens that are counted here.

    Raises:
        ConfigError: if names and weights don't match, tokenizers or policies are mixed, a component may not be used for training, is
            a held-out split, or has fewer tokens than one sequence.
        DataError: if a part is missing or broken.
    """
    if config.weights is not None:
        _same_names(config, components)
    infos = {name: [read_info(part) for part in components[name]] for name in sorted(components)}
    same_tokens({f"{name}/{info.part}": info for name, parts in infos.items() for info in parts})
    if config.temperature is not None:
        tokens = {name: sum(info.tokens for info in parts) for name, parts in infos.items()}
        config = config.changed(weights=weights_by_tokens(tokens, config.temperature), temperature=None)
    for name, parts in infos.items():
        _refuse_unusable(config, name, parts)
    output.mkdir(parents=True, exist_ok=True)
    packings = _packings(config, components, output) if config.pack == "documents" else {}
    mixture = _mixture(config, infos, packings)
    content = {"schema": MIXTURE_SCHEMA} | mixture.model_dump(mode="json")
    write_json(output / MIXTURE_FILE, content)
    components_table = [_component_row(mixture, name) for name in mixture.components]
    phases_table = _phase_rows(mixture)
    _plot(mixture, output / PLOT_FILE)
    reporter.log(f"mixture of {len(infos)} components in {len(mixture.phases)} phases")
    budgets = [Budget(mixture, tokens) for tokens in _planned(config)]
    tables = {"components": components_table} | ({"phases": phases_table} if len(mixture.phases) > 1 else {})
    if budgets:
        tables["budgets"] = budget_rows(budgets)
    totals = {str(phase.start): sum(phase.integer_weights.values()) for phase in mixture.phases}
    return Report(
        metrics=_metrics(mixture, phases_table, budgets),
        tables=tables,
        plots={"composition": output / PLOT_FILE},
        checks=[
            Check("weights_sum_to_one", set(totals.values()) == {UNIT}, "integer weights of each phase sum to 2^40", totals),
            enough_data(budgets),
        ],
        content_digest=hashlib.sha256(canonical_json(content)).hexdigest(),
    )


def _planned(config: MixtureConfig) -> tuple[int, ...]:
    """The budgets to report on: those given, else that of the run which simulated epochs stand for."""
    if config.planned_tokens or config.target_tokens is None or any(isinstance(phase.start, int) for phase in config.phases):
        return config.planned_tokens
    return (config.target_tokens,)


def _metrics(mixture: Mixture, phases: Sequence[Mapping[str, Scalar]], budgets: Sequence[Budget]) -> dict[str, Scalar]:
    tokens = sum(component.tokens for component in mixture.components.values())
    metrics: dict[str, Scalar] = {
        "component_count": len(mixture.components),
        "tokens": tokens,
        "tokenizer_digest": mixture.tokenizer.digest,
    }
    for row in phases:
        prefix = f"share_phase_{row['phase']}" if row["phase"] else "share"
        metrics[f"{prefix}/{row['component']}"] = row["share"]
    if budgets:
        largest = max(budgets, key=lambda budget: budget.tokens)
        metrics["planned_tokens"] = largest.tokens
        metrics |= {f"epochs/{name}": round(float(largest.epochs(name)), 4) for name in mixture.components}
    return metrics


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
        raise ConfigError(
            f"mixture has schema {schema!r}, this reader knows {MIXTURE_SCHEMA!r}", advice="Make the mixture again, under a new version."
        )
    content["components"] = dict(sorted(content["components"].items()))
    return Mixture.from_json(content)


def _same_names(config: MixtureConfig, components: Mapping[str, Sequence[Path]]) -> None:
    for name in sorted(set(config.names) ^ components.keys()):
        missing = "has no tokenized component" if name in config.names else "has no weight"
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
    tokens, fewest = sum(info.tokens for info in parts), config.sequence_length if config.pack == "stream" else 1
    if tokens < fewest and (any(phase.weights.get(name) for phase in config.all_phases) or not parts):
        raise ConfigError(
            f"component {name!r} has {tokens} tokens, fewer than one sequence of {config.sequence_length}",
            advice=f"Set sequence_length to at most {max(2, tokens)}, or leave the component out.",
        )


def _packings(config: MixtureConfig, components: Mapping[str, Sequence[Path]], output: Path) -> dict[str, PackingInfo]:
    infos = {}
    for name in sorted(components):
        packing = pack(components[name], config.sequence_length, name, config.seed)
        packing.write(output / PACKING_FOLDER, name)
        infos[name] = packing.info()
    return infos


def _mixture(config: MixtureConfig, infos: Mapping[str, Sequence[PartInfo]], packings: Mapping[str, PackingInfo]) -> Mixture:
    first = next(iter(infos.values()))[0]
    components = {}
    for name, parts in infos.items():
        tokens = sum(info.tokens for info in parts)
        components[name] = Component(
            tokens=tokens,
            documents=sum(info.documents for info in parts),
            bytes=sum(info.bytes for info in parts),
            sequences=packings[name].rows if name in packings else tokens // config.sequence_length,
            licenses=tuple(sorted({license for info in parts for license in info.licenses})),
            parts=tuple(ledger_of(info) for info in parts),
            packing=packings.get(name),
        )
    return Mixture(
        sequence_length=config.sequence_length,
        seed=config.seed,
        window_blocks=config.window_blocks,
        block_sequences=config.block_sequences,
        stop=config.stop,
        max_epochs=config.max_epochs,
        target_tokens=config.target_tokens,
        mask_bos_target=config.mask_bos_target,
        pack=config.pack,
        phases=tuple(_phase(phase, list(infos)) for phase in config.all_phases),
        tokenizer=first.tokenizer,
        bos_id=first.bos_id,
        eos_id=first.eos_id,
        pad_id=first.pad_id,
        policy=first.policy,
        components=components,
    )


def _phase(phase: PhaseConfig, names: Sequence[str]) -> Phase:
    weights = {name: phase.weights.get(name, 0.0) for name in names}
    return Phase(start=phase.start, weights=weights, integer_weights=dict(zip(names, integer_weights(list(weights.values())), strict=True)))


def _component_row(mixture: Mixture, name: str) -> dict[str, Scalar]:
    """A row of the table for people; `share` is that of the first phase. `first_epoch_tokens` is how far training goes before this
    component repeats (−1 = never used); with several phases that depends on the run."""
    component, integer = mixture.components[name], mixture.phases[0].integer_weights[name]
    row: dict[str, Scalar] = {
        "component": name,
        "share": round(integer / UNIT, 6),
        "tokens": component.tokens,
        "documents": component.documents,
        "bytes": component.bytes,
        "sequences": component.sequences,
        "bytes_per_token": round(component.bytes / max(1, component.tokens), 4),
    }
    if component.packing is not None:
        row["padding_share"] = round(1 - component.tokens / max(1, component.sequences * mixture.sequence_length), 6)
    if len(mixture.phases) == 1:
        row["first_epoch_tokens"] = component.sequences * mixture.sequence_length * UNIT // integer if integer else -1
    return row | {"licenses": ", ".join(component.licenses)}


def _phase_rows(mixture: Mixture) -> list[dict[str, Scalar]]:
    """Every component's share of every phase."""
    return [
        {"phase": index, "start": str(phase.start), "component": name, "share": round(integer / UNIT, 6)}
        for index, phase in enumerate(mixture.phases)
        for name, integer in phase.integer_weights.items()
    ]


def _plot(mixture: Mixture, path: Path) -> None:
    """Bars: share of training in each phase against share of the tokens that exist, the 30 largest components."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    total = max(1, sum(component.tokens for component in mixture.components.values()))
    shares = {name: [phase.integer_weights[name] / UNIT for phase in mixture.phases] for name in mixture.components}
    shown = sorted(shares, key=lambda name: (-max(shares[name]), name))[:30][::-1]
    bars: list[tuple[str, list[float], str | None]] = [
        ("share of training" + (f" from {phase.start}" if len(mixture.phases) > 1 else ""), [shares[name][index] for name in shown], None)
        for index, phase in enumerate(mixture.phases)
    ]
    bars.append(("share of tokens", [mixture.components[name].tokens / total for name in shown], "0.7"))
    height = 0.8 / len(bars)
    figure = Figure(figsize=(6, 1.2 + 0.35 * len(shown) * len(bars) / 2), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, (label, values, color) in enumerate(bars):
        places = [place + 0.4 - height * (index + 0.5) for place in range(len(shown))]
        axes.barh(places, values, height=height, label=label, color=color)
    axes.set_yticks(range(len(shown)), shown)
    axes.set_xlim(0, 1)
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Software": None})
