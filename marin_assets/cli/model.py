"""`marin model`: what a model consists of, and what training it would need on a fleet that isn't here."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from marin_assets.cli.main import Commands, Common, positive
from marin_assets.cli.output import add_row, console, duration, new_table, plain, print_fields, print_json
from marin_core.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from marin_core.plan.config import PlanConfig
    from marin_core.plan.report import PlanReport

SEQUENCES_PER_DEVICE = 16
"""Of a step, unless `--batch` says otherwise: those of the large run (11,264 sequences on 704 devices)."""

FAILED_CHECK = 1


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "model",
        parents=[common.output],
        help="show a model's parameters and FLOPs, or plan its training on a fleet",
        description="Show every parameter of a model by name. With --mesh and --device, compile its whole training step for that many "
        "devices on this machine's processors, and report memory, traffic between devices, and the least time a step can take. "
        "Exit code 1 if the step doesn't fit or sends across racks what it shouldn't.",
    )
    parser.add_argument("preset", metavar="PRESET", help="a model of marin_core.model.presets")
    plan = parser.add_argument_group("plan")
    plan.add_argument("--mesh", metavar="RACKSxDEVICES", help="racks, and devices used in each, like 11x64")
    plan.add_argument("--device", metavar="NAME", help="gb200, h100, h200, tpu_v5e, tpu_v5p or tpu_v6e")
    plan.add_argument("--batch", type=positive, metavar="N", help=f"sequences of a step (default {SEQUENCES_PER_DEVICE} a device)")
    plan.add_argument("--sequence", type=positive, metavar="N", help="tokens of a sequence (default: the model's longest context)")
    plan.add_argument("--microbatches", type=positive, metavar="N", default=1, help="parts of a step that run one after the other")
    plan.add_argument("--attention-block", type=positive, metavar="N", help="queries whose scores exist at once (default: the preset's)")
    plan.add_argument("--optimizer", choices=("adamw", "lion", "muon", "muonh"), default="adamw", help="what updates the parameters")
    plan.add_argument("--first-moment", choices=("float32", "bfloat16"), default="float32", help="type of the optimizer's first moment")
    plan.add_argument("--tokens", type=positive, metavar="N", help="token budget, for days, energy and cost (default: one step)")
    plan.add_argument("--price", type=float, metavar="PER_HOUR", help="of one device, in any currency")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if (options.mesh is None) != (options.device is None):
        raise ConfigError("A plan needs both --mesh and --device", advice="Give both, or neither to see the model alone.")
    return _describe(options) if options.mesh is None else _plan(options)


def _describe(options: argparse.Namespace) -> int:
    from marin_core.model.presets import preset
    from marin_core.plan.process import describe_model

    model = describe_model(preset(options.preset), options.preset)
    if options.json:
        print_json(model.model_dump(mode="json"))
        return ExitCode.DONE
    out = console()
    numbers = {
        "parameters": model.parameters,
        "active": model.active_parameters,
        "forward FLOPs per token": model.forward_flops_per_token,
        "of them without head": model.forward_flops_per_token_without_head,
        "training FLOPs per token": model.training_flops_per_token,
        "of these without head": model.training_flops_per_token_without_head,
    }
    print_fields(out, {"model": model.name} | {name: f"{number:,}" for name, number in numbers.items()})
    arrays = new_table("parameters", "name", "shape", "type", "parameters")
    for row in model.groups:
        add_row(arrays, row.name, "×".join(map(str, row.shape)), row.dtype, f"{row.parameters:,}")
    if model.selection_bias:
        add_row(arrays, "selection bias (not trained)", "", "float32", f"{model.selection_bias:,}")
    layers = new_table("layers", "layer", "attention", "span", "KV heads", "feed-forward", "parameters", "forward FLOPs per token")
    for layer in model.layers:
        counts = (f"{layer.parameters:,}", f"{layer.forward_flops_per_token:,}")
        add_row(layers, layer.layer, layer.attention, f"{layer.span_tokens:,}", layer.kv_heads, layer.feed_forward, *counts)
    out.print(arrays)
    out.print(layers)
    return ExitCode.DONE


def _plan(options: argparse.Namespace) -> int:
    from marin_core.plan.process import plan_run

    config = _plan_config(options)
    progress = console(stderr=True)
    progress.print(f"planning {options.preset} on {config.fleet.mesh.devices} {config.fleet.device}; large models take minutes")
    report, took = plan_run(config, lambda line: progress.print(f"  {plain(line)}", soft_wrap=True))
    passed = all(check.passed for check in report.checks)
    if options.json:
        print_json({"preset": options.preset, "report": report.model_dump(mode="json"), "took": took, "passed": passed})
    else:
        _print_plan(report, took)
    return ExitCode.DONE if passed else FAILED_CHECK


def _plan_config(options: argparse.Namespace) -> "PlanConfig":
    from marin_core.hardware import FleetConfig, MeshShape
    from marin_core.model.presets import preset
    from marin_core.plan.config import PlanConfig
    from marin_core.train.checkpoint.config import CheckpointPolicy
    from marin_core.train.config import TrainConfig
    from marin_core.train.optimizers.config import AdamW, Lion, Muon, MuonH
    from marin_core.train.schedules import Wsd

    model = preset(options.preset)
    if options.attention_block is not None:
        model = model.changed(attention_block=options.attention_block)
    fleet = FleetConfig(mesh=MeshShape.parse(options.mesh), device=options.device, price_per_device_hour=options.price)
    optimizer = {"adamw": AdamW, "lion": Lion, "muon": Muon, "muonh": MuonH}[options.optimizer]
    train = TrainConfig(
        model=model,
        optimizer=optimizer(schedule=Wsd(), first_moment_dtype=options.first_moment),
        num_steps=1,
        global_batch_size=options.batch or SEQUENCES_PER_DEVICE * fleet.mesh.devices,
        sequence_length=options.sequence or model.max_sequence_length,
        micro_batches=options.microbatches,
        checkpoints=CheckpointPolicy(permanent_every_steps=1),
    )
    return PlanConfig(train=train, fleet=fleet, total_tokens=options.tokens)


def _print_plan(report: "PlanReport", took: Mapping[str, float]) -> None:
    from marin_core.plan.tables import plan_tables

    out = console()
    for table in plan_tables(report):
        sheet = new_table(table.title, *table.columns)
        for row in table.rows:
            add_row(sheet, *row)
        out.print(sheet)
    for caveat in report.caveats:
        out.print(plain(f"note: {caveat}"))
    out.print(f"traced in {duration(took['lower_seconds'])}, compiled in {duration(took['compile_seconds'])}")
