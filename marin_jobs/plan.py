"""Compile a run's training step for a fleet that isn't here, and report what it needs."""

from marin_core.plan.build import make_plan
from marin_core.plan.compile import use_cpu_devices
from marin_core.plan.config import PlanConfig
from marin_core.plan.plots import draw_plots
from marin_core.plan.report import PlanReport
from marin_core.plan.tables import markdown
from marin_core.report import Check, Report, Scalar
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(PlanConfig)
    use_cpu_devices(config.fleet.mesh.devices)
    report, compiled = make_plan(config, job.reporter.log)
    (job.output / "plan.json").write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (job.output / "plan.md").write_text(markdown(report), encoding="utf-8")
    return Report(
        metrics=_metrics(report) | {"lower_seconds": compiled.lower_seconds, "compile_seconds": compiled.compile_seconds},
        tables={
            "fits": [fit.model_dump() for fit in report.fits],
            "collectives": [row.model_dump() for row in report.traffic],
            "caveats": [{"caveat": caveat} for caveat in report.caveats],
        },
        plots=draw_plots(report, job.output / "plots"),
        checks=[Check(check.name, check.passed, check.description) for check in report.checks],
    )


def _metrics(report: PlanReport) -> dict[str, Scalar]:
    bound = report.roofline
    return {
        "devices": report.mesh.devices,
        "parameters": report.model.parameters,
        "active_parameters": report.model.active_parameters,
        "peak_memory_bytes_per_device": report.memory.peak_bytes,
        "argument_bytes_per_device": report.memory.argument_bytes,
        "temporary_bytes_per_device": report.memory.temporary_bytes,
        "memory_share": next(fit.share for fit in report.fits if fit.device == report.device.name),
        "rack_link_bytes_per_step": bound.rack_link_bytes,
        "cross_rack_bytes_per_step": bound.cross_rack_bytes,
        "compute_seconds_per_step": bound.compute_seconds,
        "overlapped_seconds_per_step": bound.overlapped_step_seconds,
        "serial_seconds_per_step": bound.serial_step_seconds,
        "slowest_resource": bound.slowest,
        "overlapped_tokens_per_second": bound.overlapped_tokens_per_second,
        "overlapped_mfu": bound.overlapped_mfu,
        "serial_mfu": bound.serial_mfu,
        "overlapped_days": bound.overlapped_days,
        "serial_days": bound.serial_days,
        **({} if bound.energy_megawatt_hours is None else {"energy_megawatt_hours": bound.energy_megawatt_hours}),
        **({} if bound.cost is None else {"cost": bound.cost}),
    }
