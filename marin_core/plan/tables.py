"""A plan as tables: the same rows for a terminal, a page and an asset."""

from dataclasses import dataclass

from marin_core.plan.report import PlanReport, gigabytes


@dataclass(frozen=True)
class PlanTable:
    """A title, names of columns, and rows of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"## {self.title}\n\n{table}\n"


def plan_tables(report: PlanReport) -> tuple[PlanTable, ...]:
    """All tables of a report, in the order in which one asks: does it fit, what does it send, how long does it take."""
    return (_run(report), _memory(report), _fits(report), _traffic(report), _roofline(report), _budget(report), _checks(report))


def markdown(report: PlanReport) -> str:
    """The report as a page."""
    caveats = "".join(f"- {caveat}\n" for caveat in report.caveats)
    tables = "\n".join(table.markdown() for table in plan_tables(report))
    return f"# Plan for {report.mesh} {report.device.name}\n\n{tables}\n## To keep in mind\n\n{caveats}"


def _run(report: PlanReport) -> PlanTable:
    rows = {
        "devices": f"{report.mesh.devices} {report.device.name}: {report.mesh.racks} racks of {report.mesh.devices_per_rack}",
        "parameters": f"{report.model.parameters:,} ({report.model.active_parameters:,} active)",
        "training FLOPs per token": f"{report.model.training_flops_per_token:,}",
        "batch": f"{report.global_batch_size:,} sequences of {report.sequence_length:,} tokens in {report.micro_batches} micro-batches",
        "tokens per step": f"{report.tokens_per_step:,}",
    }
    return PlanTable("Run", ("what", "value"), tuple(rows.items()))


def _memory(report: PlanReport) -> PlanTable:
    memory = report.memory
    rows = {
        "arguments (parameters, optimizer, batch)": memory.argument_bytes,
        "outputs": memory.output_bytes,
        "outputs that take over arguments": -memory.aliased_bytes,
        "temporaries (estimate)": memory.temporary_bytes,
        "at once": memory.peak_bytes,
        "in the host's memory": memory.host_bytes,
    }
    signed = tuple((name, ("−" if count < 0 else "") + gigabytes(abs(count))) for name, count in rows.items())
    return PlanTable("Memory of one device", ("what", "bytes"), signed)


def _fits(report: PlanReport) -> PlanTable:
    rows = tuple((fit.device, gigabytes(fit.hbm_bytes), f"{fit.share:.1%}", "yes" if fit.fits else "no") for fit in report.fits)
    return PlanTable("Fit", ("device", "memory", "used", "fits"), rows)


def _traffic(report: PlanReport) -> PlanTable:
    rows: list[tuple[str, ...]] = [
        (
            row.kind,
            row.axes,
            row.purpose,
            "yes" if row.in_loop else "no",
            f"{row.instructions}",
            f"{'≥ ' if row.lower_bound else ''}{'≤ ' if row.upper_bound else ''}{row.executions:,}",
            gigabytes(row.operand_bytes),
            gigabytes(row.rack_link_bytes),
            gigabytes(row.cross_rack_bytes),
        )
        for row in report.traffic
    ]
    if report.expert_rows is not None:
        sent, padded = report.expert_rows.step_bytes, report.expert_rows.padded_step_bytes
        note = f"rows of tokens to experts and back, by arithmetic: {gigabytes(sent)}, in static pools {gigabytes(padded)}"
        rows.append(("(arithmetic)", "expert", note, "", "", "", gigabytes(padded), "", ""))
    columns = ("kind", "axes", "purpose", "in a loop", "instructions", "executions", "operands", "sent in the rack", "sent to other racks")
    return PlanTable("Collectives of one device in a step", columns, tuple(rows))


def _roofline(report: PlanReport) -> PlanTable:
    bound = report.roofline
    rows = (
        ("model FLOPs at the peak", f"{bound.model_flops_per_step:.5g} FLOP in all", seconds(bound.compute_seconds)),
        ("what is computed again", "a third of it", seconds(bound.recompute_seconds)),
        ("device memory, at least", gigabytes(bound.hbm_bytes), seconds(bound.hbm_seconds)),
        ("rack link", gigabytes(bound.rack_link_bytes), seconds(bound.rack_link_seconds)),
        ("cross-rack link", gigabytes(bound.cross_rack_bytes), seconds(bound.cross_rack_seconds)),
        ("all at once", f"bound by {bound.slowest}", seconds(bound.overlapped_step_seconds)),
        ("one after the other", "", seconds(bound.serial_step_seconds)),
    )
    return PlanTable("Least time of a step", ("what", "amount", "time"), rows)


def _budget(report: PlanReport) -> PlanTable:
    bound = report.roofline
    rows = [
        ("tokens/s", f"{bound.overlapped_tokens_per_second:,.0f}", f"{bound.serial_tokens_per_second:,.0f}"),
        ("model FLOPs utilisation", f"{bound.overlapped_mfu:.1%}", f"{bound.serial_mfu:.1%}"),
        (f"days for {bound.budget_tokens:,} tokens", f"{bound.overlapped_days:,.2f}", f"{bound.serial_days:,.2f}"),
    ]
    longer = bound.serial_days / bound.overlapped_days
    for name, value in (("energy (MWh)", bound.energy_megawatt_hours), ("cost", bound.cost)):
        shown = ("not known", "not known") if value is None else (f"{value:,.2f}", f"{value * longer:,.2f}")
        rows.append((name, *shown))
    return PlanTable("Bounds of the run", ("what", "all at once", "one after the other"), tuple(rows))


def _checks(report: PlanReport) -> PlanTable:
    rows = tuple((check.name, "passed" if check.passed else "FAILED", check.description) for check in report.checks)
    return PlanTable("Checks", ("check", "result", "says"), rows)


def seconds(count: float) -> str:
    """A time for people."""
    return f"{count:.3f} s" if count >= 1 else f"{count * 1e3:.3f} ms"
