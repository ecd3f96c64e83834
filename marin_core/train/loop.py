"""The training loop: make, restore, then batch, step, tell, save."""

import gc
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from marin_core.data.batch import Batch
from marin_core.data.loader import Prefetch
from marin_core.distributed import anywhere, barrier, from_lead, is_lead, process_count, process_index
from marin_core.errors import ConfigError, DataError, PreemptedError
from marin_core.model.mesh import batch_sharding, make_mesh
from marin_core.report import Reporter
from marin_core.train.checkpoint.config import Kind
from marin_core.train.checkpoint.mirror import Mirror
from marin_core.train.checkpoint.store import CheckpointStore
from marin_core.train.config import TrainConfig
from marin_core.train.health.history import RunHistory
from marin_core.train.metrics import MetricsFile, Row, layer_metrics, norm_metrics, step_metrics
from marin_core.train.observer import Observer
from marin_core.train.optimizers.build import optimizer_metrics
from marin_core.train.order import Batches, Skipped, SkippedBatches, checked_batch
from marin_core.train.run_record import open_run
from marin_core.train.stages import first_state, inherit_history
from marin_core.train.step import StepOutput, TrainState, TrainStep, abstract_batch, abstract_state, compile_train_step
from marin_core.train.throughput import StepTimer, StepTimes, memory_values, step_work, throughput_values, total_values
from marin_core.train.watchdog import Watchdog


@dataclass(frozen=True)
class RoutingResult:
    """What a finished run of a mixture of experts says about its routing.

    Attributes:
        load_cv_start, load_cv_end: spread of expert loads over the first and last (at most 10) steps.
        drop_fraction_end: share of assignments dropped over the last steps.
        idle_experts_end: (layer, expert) pairs that the last batch sent no token to.
    """

    load_cv_start: float
    load_cv_end: float
    drop_fraction_end: float
    idle_experts_end: int


@dataclass(frozen=True)
class TrainResult:
    """What a finished run amounts to.

    Attributes:
        steps, tokens: completed updates and the tokens they saw.
        loss_start, loss_end: mean loss of the first and last (at most 10) steps, nats per token.
        routing: what became of the experts; None of a dense model.
        tokens_per_second: median over the newest steps of this process but the first; 0 where it made fewer than two.
        plots: name → PNG file.
        content_digest: of the final checkpoint's arrays.
        checkpoint_digests: step → digest of each kept checkpoint.
        alerts: names of the rules that raised one, at any time.
        tracker_url: where W&B shows the run; None offline.
    """

    steps: int
    tokens: int
    loss_start: float
    loss_end: float
    routing: RoutingResult | None
    tokens_per_second: float
    plots: Mapping[str, Path]
    content_digest: str
    checkpoint_digests: Mapping[int, str]
    alerts: tuple[str, ...]
    tracker_url: str | None


def train(
    config: TrainConfig,
    batches: Batches,
    run_dir: Path,
    reporter: Reporter,
    *,
    fingerprint: str,
    run_name: str,
    source_commit: str | None = None,
    tracker_dir: Path | None = None,
    earlier_run: Path | None = None,
    mirror: Mirror | None = None,
    phase_borders: tuple[int, ...] = (),
    retried: bool = False,
) -> TrainResult | None:
    """Train to `config.num_steps`, from the newest checkpoint in `run_dir` or from the start.

    A killed run that is started again makes the same losses, bit for bit, as one that was never killed. With several processes
    (`marin_core.distributed`) all call this; the first speaks for all.

    Args:
        batches: where batches come from.
        run_dir: holds run.json, metrics.jsonl, alerts.jsonl, checkpoints/ and plots/; all processes share it.
        fingerprint: of the configuration; a directory of another run is refused.
        run_name: for people.
        source_commit: of the code, for the metadata of checkpoints.
        phase_borders: steps at which the data changes; losses on two sides of one are not compared.
        retried: this attempt follows one that failed.
        earlier_run: `run_dir` of the run that `config.start_from` or `config.fork` names a checkpoint of.
        mirror: of `run_dir` in a store that is no file system; only the first process has one.
        tracker_dir: holds wandb/, whose service writes its logs even after the run has ended; `run_dir` if not given.

    Returns:
        What the run amounts to; None in all processes but the first.

    Raises:
        ConfigError: `run_dir` belongs to another run, or the mesh needs more devices than there are.
        DataError: a batch doesn't fit the configuration, or gives a loss that is not finite; nothing is saved after it.
        InfrastructureError: a save failed or outlasted its deadline.
        PreemptedError: the reporter of any process asked to stop; the state is saved.
    """
    _refuse_corrupting_flags(config)
    mesh = _mesh(config)
    record = open_run(run_dir, config, fingerprint=fingerprint, run_name=run_name)
    inherit_history(config, earlier_run, run_dir)
    with ExitStack() as stack:
        if mesh is not None:
            stack.enter_context(jax.set_mesh(mesh))
        stack.enter_context(_collected_by_hand())
        health = config.health
        watchdog = Watchdog(health.watchdog_seconds, run_dir, startup_seconds=health.startup_seconds + health.watchdog_seconds)
        stack.enter_context(watchdog)
        store = stack.enter_context(
            CheckpointStore(run_dir, config.checkpoints, fingerprint=fingerprint, source_commit=source_commit, mirror=mirror)
        )
        run = _Run(config, mesh, batches, SkippedBatches(run_dir), store, watchdog, reporter)
        state = run.begin(earlier_run)
        start = int(state.step)
        reporter.log(f"Training {run_name} from step {start} to {config.num_steps}")
        if is_lead():
            borders = sorted({*phase_borders, *(stage.first_step for stage in config.batches.stages[1:])})
            history = RunHistory(time.monotonic(), config.model.moe.experts if config.model.moe else None, tuple(borders))
            folder = tracker_dir or run_dir
            run.observer = stack.enter_context(Observer.watching(config, record, run_dir, folder, reporter, start, history))
            if retried:
                run.observer.retried()
        run.train(state)
        return None if run.observer is None else _result(config, run.observer, store)


def _mesh(config: TrainConfig) -> Mesh | None:
    if process_count() > 1 and (config.mesh is None or config.mesh.devices != jax.device_count()):
        raise ConfigError(
            f"{process_count()} processes have {jax.device_count()} devices, and the run's mesh is {config.mesh or 'one device'}",
            advice="Choose a mesh of racks · devices_per_rack = all devices of all processes.",
        )
    return None if config.mesh is None else make_mesh(config.mesh.racks, config.mesh.devices_per_rack)


def _refuse_corrupting_flags(config: TrainConfig) -> None:
    """Offloading, XLA's latency-hiding scheduler and several collectives at once each work; together they corrupted a training (§9)."""
    flags = dict(flag.lstrip("-").split("=", 1) for flag in os.environ.get("XLA_FLAGS", "").split() if "=" in flag)
    hiding = flags.get("xla_gpu_enable_latency_hiding_scheduler", "false").lower() in ("true", "1")
    overlap = flags.get("xla_gpu_experimental_parallel_collective_overlap_limit", "1")
    if config.offload_optimizer_state and hiding and overlap != "1":
        raise ConfigError(
            "offload_optimizer_state with xla_gpu_enable_latency_hiding_scheduler and"
            f" xla_gpu_experimental_parallel_collective_overlap_limit = {overlap} corrupts parameters",
            advice="Leave one of the three out of the configuration and XLA_FLAGS.",
        )


class _Finished(NamedTuple):
    """A step that was begun: its number, that of its batch, and what it will return."""

    step: int
    batch: int
    output: StepOutput


class _SpikeError(Exception):
    """Several updates in a row were left out, up to that of `step`."""

    def __init__(self, first_step: int, step: int, losses: tuple[float | None, ...]) -> None:
        super().__init__(f"updates of steps {first_step} to {step} were left out")
        self.first_step, self.step, self.losses = first_step, step, losses


class _Run:
    """One attempt of a run, in one process."""

    def __init__(
        self,
        config: TrainConfig,
        mesh: Mesh | None,
        batches: Batches,
        skipped: SkippedBatches,
        store: CheckpointStore,
        watchdog: Watchdog,
        reporter: Reporter,
    ) -> None:
        self.config = config
        self.mesh = mesh
        self.batches = batches
        self.skipped = skipped
        self.store = store
        self.watchdog = watchdog
        self.reporter = reporter
        self.observer: Observer | None = None
        self.timer = StepTimer()
        self.saved_at = time.monotonic()
        self.left_out: list[Row] = []
        """Rows of the newest steps whose updates were left out, one after the other."""
        self.skipped_leaves = 0

    def begin(self, earlier_run: Path | None) -> TrainState:
        """Compile, then restore the newest checkpoint, or make the first state."""
        self.step_of_stage: dict[int, TrainStep] = {
            stage.first_step: compile_train_step(self.config, self.mesh, stage) for stage in self.config.batches.stages
        }
        state = self.store.restore_newest(abstract_state(self.config, self.mesh), self.reporter)
        return first_state(self.config, self.mesh, earlier_run) if state is None else state

    def train(self, state: TrainState) -> None:
        """All steps that are left; after a spike from an earlier checkpoint."""
        while True:
            try:
                self._train(state)
                break
            except _SpikeError as spike:
                del state  # its memory is the restored state's
                state = self._roll_back(spike)
        self.store.wait()

    def _train(self, state: TrainState) -> None:
        config = self.config
        step, pending = int(state.step), None
        self.skipped_leaves = int(optimizer_metrics(state.optimizer_state).get("skipped_leaves", 0))
        with Prefetch(self._read, step, config.prefetch_steps, config.num_steps) as source:
            while step < config.num_steps:
                with self.timer.span("input"):
                    batch = next(source)
                with self.timer.span("compute"):
                    state, output = self._step_function(step)(state, self._placed(batch, step))
                    if pending is not None:
                        self._finish(pending)  # while the device works on the next
                pending = _Finished(step, self.skipped.batch_of(step), output)
                step += 1
                kind, stopping = self._due(step)
                if kind is not None or step == config.num_steps:
                    with self.timer.span("compute"):
                        self._finish(pending)
                    pending = None
                if kind is not None:
                    self._save(step, state, kind)
                if stopping:
                    self._stop(step)
                if step % config.gc_every_steps == 0:
                    self._collect_garbage()

    def _read(self, step: int) -> Batch:
        """This process's rows of the batch of a step."""
        index, hosts = self.skipped.batch_of(step), process_count()
        return checked_batch(self.config, self.config.batches.stage(step), self.batches(index, process_index(), hosts), index, hosts)

    def _step_function(self, step: int) -> TrainStep:
        return self.step_of_stage[self.config.batches.stage(step).first_step]

    def _placed(self, batch: Batch, step: int) -> Batch:
        """This process's rows as its part of the global batch."""
        sharding, whole = batch_sharding(self.mesh), abstract_batch(self.config, self.mesh, self.config.batches.stage(step))
        leaves = (
            jax.make_array_from_process_local_data(sharding, np.asarray(rows), leaf.shape) for rows, leaf in zip(batch, whole, strict=True)
        )
        return Batch(*leaves)

    def _due(self, step: int) -> tuple[Kind | None, bool]:
        """What to save after `step` updates, and whether to stop then; the same in all processes."""
        config = self.config
        stopping = anywhere(self.reporter.stop_requested()) and step < config.num_steps
        kind = config.checkpoints.due(step, config.num_steps, time.monotonic() - self.saved_at)
        if config.checkpoints.temporary_every_seconds is not None:
            kind = from_lead(kind or "") or None  # type: ignore[assignment]
        return kind or ("temporary" if stopping else None), stopping

    def _save(self, step: int, state: TrainState, kind: Kind) -> None:
        self._collect_garbage()
        with self.timer.span("checkpoint"):
            if self.observer is not None:
                self.observer.metrics.sync()  # a checkpoint never comes before the rows of its steps
            self.store.save(step, state, temporary=kind == "temporary")
        self.saved_at = time.monotonic()
        if self.observer is not None:
            self.observer.saved()

    def _stop(self, step: int) -> None:
        self.store.wait()
        raise PreemptedError(
            f"Training was asked to stop and saved a checkpoint after step {step} of {self.config.num_steps}",
            advice=f"Start the same run again; it continues from step {step}.",
        )

    def _collect_garbage(self) -> None:
        """All processes at one step: else each waits for the others' collections in turn (§9)."""
        with self.timer.span("gc"):
            gc.collect()

    def _finish(self, finished: _Finished) -> None:
        """Wait for a step, judge it, and tell of it.

        Raises:
            DataError: loss or gradient is not finite.
            _SpikeError: updates were left out for too long.
        """
        config, step = self.config, finished.step
        arrays = jax.tree.map(np.asarray, jax.device_get(finished.output))
        norms = arrays.pop("norms")
        self.watchdog.beat(step)
        values = step_metrics(arrays, config.model.moe, config.mesh.devices_per_rack if config.mesh else 1)
        row: Row = {
            "step": step,
            "batch": finished.batch,
            "time": time.time(),
            **values,
            **self._work(step, self.timer.lap()),
            **memory_values(),
        }
        self._judge(row)
        if step % config.log_every_steps == 0 or step + 1 == config.num_steps:
            row["norms"] = norm_metrics(norms)
            if config.model.moe is not None:
                row |= {"load": arrays["load"].tolist(), "layers": layer_metrics(arrays)}
        if self.observer is not None:
            with self.timer.span("hooks"):
                self.observer.step(row)
        roll_back = config.roll_back
        if roll_back is not None and len(self.left_out) >= roll_back.after_skipped_steps:
            raise _SpikeError(
                self.left_out[0]["step"], step, tuple(row["loss"] if math.isfinite(row["loss"]) else None for row in self.left_out)
            )

    def _work(self, step: int, times: StepTimes) -> dict[str, float]:
        stage, kind = self.config.batches.stage(step), jax.devices()[0].device_kind
        devices = self.config.mesh.devices if self.config.mesh else 1
        work = step_work(self.config.model, stage.global_batch_size, stage.sequence_length, devices, kind)
        return throughput_values(times, work) | total_values(self.config.model, self.config.batches, step + 1)

    def _judge(self, row: Row) -> None:
        """Count updates that were left out in a row; refuse what isn't finite, unless the optimizer left it out."""
        kept = self.config.roll_back.after_skipped_steps if self.config.roll_back else 1
        self.left_out = [*self.left_out, row][-kept:] if row.get("skipped", 0) else []
        guarded = row.get("skipped_leaves", 0) > self.skipped_leaves
        self.skipped_leaves = row.get("skipped_leaves", 0)
        if self.left_out or guarded:
            return
        for name in ("loss", "gradient_norm"):
            if not math.isfinite(row[name]):
                if self.observer is not None:
                    self.observer.broke(row)
                raise DataError(
                    f"{name} of step {row['step']} is {row[name]} on batch {row['batch']}; nothing was saved after it",
                    advice="Look at that batch; if it is sound, lower the learning rate or clip gradients, under a new version.",
                )

    def _roll_back(self, spike: _SpikeError) -> TrainState:
        """Restore the newest checkpoint before a spike, and leave out the batches from there to its end."""
        assert self.config.roll_back is not None  # noqa: S101  # nothing else raises a spike
        self.store.wait()
        self.left_out = []
        earlier = [step for step in self.store.steps() if step <= spike.first_step]
        if len(self.skipped.entries) >= self.config.roll_back.at_most or not earlier:
            why = "there is no checkpoint before it" if not earlier else f"the run has gone back {len(self.skipped.entries)} times already"
            raise DataError(
                f"Updates of steps {spike.first_step} to {spike.step} were left out, and {why}",
                advice="Look at the metrics before it; lower the learning rate or change the data, under a new version.",
            )
        target = earlier[-1]
        for step in self.store.steps():
            if step > target:
                self.store.delete(step)
        reason = f"updates of steps {spike.first_step} to {spike.step} were left out"
        first, last = self.skipped.batch_of(target), self.skipped.batch_of(spike.step)
        entry = Skipped(at_step=target, batches=last + 1 - first, reason=reason, losses=spike.losses)
        self.skipped.add(entry, write=is_lead())
        self.reporter.log(f"Going back from step {spike.step} to {target}, since {reason}; batches {first} to {last} are left out")
        if self.observer is not None:
            self.observer.rewind(target)
        barrier("roll back", self.config.checkpoints.deadline_seconds)
        return self.store.restore(target, abstract_state(self.config, self.mesh))


@contextmanager
def _collected_by_hand() -> Iterator[None]:
    """Without Python's own garbage collections, which come at another moment in each process."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _result(config: TrainConfig, observer: Observer, store: CheckpointStore) -> TrainResult:
    observer.finish()
    observer.draw(config.num_steps)
    metrics, digests = observer.metrics, store.permanent_digests()
    return TrainResult(
        steps=config.num_steps,
        tokens=config.batches.tokens_before(config.num_steps),
        loss_start=metrics.first_mean("loss"),
        loss_end=metrics.last_mean("loss"),
        routing=None if config.model.moe is None else _routing_result(metrics),
        tokens_per_second=observer.tokens_per_second,
        plots=observer.plots,
        content_digest=digests[config.num_steps],
        checkpoint_digests=digests,
        alerts=observer.alerts,
        tracker_url=observer.tracker.url,
    )


def _routing_result(metrics: MetricsFile) -> RoutingResult:
    return RoutingResult(
        load_cv_start=metrics.first_mean("load_cv"),
        load_cv_end=metrics.last_mean("load_cv"),
        drop_fraction_end=metrics.last_mean("drop_fraction"),
        idle_experts_end=int(np.sum(np.asarray(metrics.last[-1]["load"]) == 0)),
    )
