"""Thresholds of the alerts, each with its source; rules, documentation and dashboards read them from here. Imports nothing heavy."""

import math

from pydantic import Field

from marin_core.config import Config

BASELINE_SECONDS = 3300.0
"""Losses are compared with the 55 minutes before."""

HISTORY_SECONDS = 7200.0
"""Rows of the last two hours are remembered: a loss that rose an hour ago still has what it rose from."""


class HealthConfig(Config):
    """When a run is called unhealthy (`spec/training.md` §7, marin docs/ops/hero-run-health-alerts.md).

    What has a scale (tokens a second, a gradient norm) differs from run to run: such a field is None here, its rule is then silent, and
    a preset sets it.
    """

    interval_seconds: float = Field(default=60, gt=0, description="Rules are evaluated so often.")
    pending_seconds: float = Field(default=300, ge=0, description="A condition must hold so long before it is an alert.")
    fresh_seconds: float = Field(default=900, gt=0, description="Samples older than this say nothing about now.")
    fewest_samples: int = Field(default=10, ge=1, description="Statistics over fewer samples fire nothing.")

    stalled_seconds: float = Field(default=900, gt=0, description="Longest time without a step.")
    startup_seconds: float = Field(default=3600, gt=0, description="Longest time to the first step; twice the barrier's time-out.")
    watchdog_seconds: float = Field(default=3600, gt=0, description="A process without a step for so long is ended and retried.")
    silent_seconds: float = Field(default=600, gt=0, description="Oldest that the newest sign of life may be.")
    scheduler_stale_seconds: float = Field(default=300, gt=0, description="Oldest that the scheduler's word may be.")

    floor_seconds: float = Field(default=300, gt=0, description="The loss floor is the smallest loss of so long.")
    loss_spike_sigmas: float = Field(
        default=6.0, gt=0, description="Floor above the mean of the 55 minutes before, in standard deviations."
    )
    loss_jump_nats: float = Field(default=1.0, gt=0, description="Floor above the lowest floor of the attempt, in nats.")
    gradient_norm: float | None = Field(default=None, gt=0, description="Highest gradient norm.")
    gradient_norm_rise: float = Field(default=1.5, gt=1, description="Largest ratio of median gradient norms an hour apart.")
    skipped_steps: int = Field(default=3, ge=1, description="So many skipped updates in `fresh_seconds` are too many.")
    sphere_drift: float = Field(default=1e-3, gt=0, description="Largest relative drift of a norm that the optimizer keeps constant.")

    drop_fraction: float = Field(default=0.07, gt=0, le=1, description="Largest share of dropped assignments; healthy runs touch 5 %.")
    router_entropy_slack_nats: float = Field(default=0.031, gt=0, description="Farthest that routing entropy may lie below ln E.")
    router_bias: float | None = Field(default=None, gt=0, description="Largest absolute selection bias.")
    saturated_share: float = Field(default=0.01, ge=0, le=1, description="Largest share of experts outside the balancer's histogram.")
    saturated_after_steps: int = Field(default=1_000, ge=0, description="Steps in which the histogram finds its range.")
    dead_ratio: float = Field(
        default=1 / 200, gt=0, lt=1, description="A layer or expert with less than this share of the median gradient norm is dead."
    )
    dead_norm_rows: int = Field(default=3, ge=1, le=16, description="An expert is dead once it was so in this many norm rows in a row.")

    tokens_per_second: float | None = Field(default=None, gt=0, description="Lowest throughput.")
    mfu: float | None = Field(default=None, gt=0, lt=1, description="Lowest model FLOPs utilisation.")
    eval_regression: float = Field(default=0.02, gt=0, description="An evaluation this share worse than the last has regressed.")
    retry_seconds: float = Field(default=900, gt=0, description="A retry is news for so long.")
    rss_checkpoints: int = Field(default=3, ge=2, le=16, description="Host memory grows if its floor rises over so many checkpoints.")
    rss_growth: float = Field(default=0.02, gt=0, description="Smallest rise over those checkpoints that is no noise.")

    def router_entropy(self, experts: int) -> float:
        """Lowest healthy routing entropy in nats; uniform loads have ln E. 5.92 for the large run's 384 experts."""
        return math.log(experts) - self.router_entropy_slack_nats


HERO = HealthConfig(gradient_norm=2.0, router_bias=400.0, tokens_per_second=2.0e6, mfu=0.15)
"""Of the 535-billion-parameter run on 704 GPUs."""
