"""What a run tells the outside while it trains: its own files, the live trackers, alerts, plots."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import monotonic

from marin_core.report import Reporter
from marin_core.train.config import TrainConfig
from marin_core.train.health.history import RunHistory
from marin_core.train.health.monitor import Health
from marin_core.train.health.rules import Alert
from marin_core.train.metrics import MetricsFile, Row, numbers
from marin_core.train.plots import draw_plots
from marin_core.train.run_record import RunRecord
from marin_core.train.tracking import Tracker

RATES = 1_000
"""Newest steps that a run's speed is a median of."""


class Observer:
    """Takes the row of every step. Of several processes only the lead has one: the others compute the same numbers.

    Attributes:
        metrics: the run's own file.
        tracker: the live view.
        plots: name → PNG file, as last drawn.
    """

    def __init__(
        self, config: TrainConfig, run_dir: Path, reporter: Reporter, tracker: Tracker, metrics: MetricsFile, health: Health
    ) -> None:
        self._config = config
        self._folder = run_dir / "plots"
        self._reporter = reporter
        self._health = health
        self._drawn_at = monotonic()
        self._rates: deque[float] = deque(maxlen=RATES)
        self.metrics = metrics
        self.tracker = tracker
        self.plots: Mapping[str, Path] = {}

    @classmethod
    @contextmanager
    def watching(
        cls, config: TrainConfig, record: RunRecord, run_dir: Path, tracker_dir: Path, reporter: Reporter, start: int, history: RunHistory
    ) -> Iterator["Observer"]:
        """An observer of the steps from `start` on; alerts are looked for on a thread of their own."""

        def changed(alert: Alert, raised: bool) -> None:
            reporter.alert(alert.to_json(), raised=raised)

        with ExitStack() as stack:
            tracker = stack.enter_context(Tracker(record, tracker_dir, reporter))
            metrics = stack.enter_context(MetricsFile(run_dir / "metrics.jsonl", start))
            health = Health(run_dir / "alerts.jsonl", history, config.health, changed)
            stack.enter_context(health.watching())
            yield cls(config, run_dir, reporter, tracker, metrics, health)

    def step(self, row: Row) -> None:
        """Take in the row of a finished step."""
        config, done = self._config, row["step"] + 1
        self.metrics.append(row)
        self._health.add(row)
        self._rates.append(row["throughput/tokens_per_second"])
        self._reporter.progress(done, config.num_steps, "steps")
        if row["step"] % config.log_every_steps == 0 or done == config.num_steps:
            values = {name: float(value) for name, value in numbers(row).items() if name != "step"}
            self._reporter.metrics(values, row["step"])
            self.tracker.log(values, row["step"])
        if monotonic() - self._drawn_at >= config.plot_every_seconds:
            self.draw(done)

    def draw(self, done: int) -> None:
        """Draw the plots after `done` steps, and show them."""
        self.plots = draw_plots(self.metrics.sample.rows, self._folder)
        self._drawn_at = monotonic()
        self._reporter.plots(self.plots, done)

    def saved(self) -> None:
        """A checkpoint was begun: the time to look at memory that isn't given back."""
        self._health.tell(lambda history, now: history.checkpoint_saved())

    def broke(self, row: Row) -> None:
        """Take in the row of a step that ends the run, which goes into no file but that of the alerts."""
        self._health.add(row)
        self._health.check()

    def retried(self) -> None:
        """This attempt follows one that failed."""
        self._health.tell(RunHistory.retried)

    def rewind(self, step: int) -> None:
        """Forget the rows from `step` on: the run has gone back to it."""
        self.metrics.rewind(step)

    def finish(self) -> None:
        """The run has ended on purpose."""
        self._health.check()
        self._health.finish()

    @property
    def alerts(self) -> tuple[str, ...]:
        """Names of the rules that any attempt of this run has raised."""
        return tuple(sorted(alert.name for alert in self._health.raised))

    @property
    def tokens_per_second(self) -> float:
        """Median over the newest steps of this process but the first, whose time is another's; 0 where it made fewer than two."""
        rates = list(self._rates)[1:]
        return float(median(rates)) if rates else 0.0
