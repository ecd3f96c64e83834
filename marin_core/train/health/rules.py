"""The alert table: what is wrong with a run, how it is known, what causes it, what to do. Sources as in `spec/training.md` §7 and §9."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from marin_core.train.health import conditions
from marin_core.train.health.conditions import Condition, Value
from marin_core.train.health.config import HealthConfig
from marin_core.train.health.history import RunHistory

Route = Literal["page", "announce"]
"""Wake somebody, or tell everybody."""


@dataclass(frozen=True)
class Rule:
    """One line of the table.

    Attributes:
        condition: what holds when something is wrong.
        cause: what it means, and what caused it before.
        action: what to do.
        needs: `steps` reads samples, so only while they are fresh; `running` judges what happened to a run that has made a step;
            `always` judges silence, which needs neither.
    """

    name: str
    route: Route
    condition: Condition
    cause: str
    action: str
    needs: Literal["steps", "running", "always"] = "steps"


@dataclass(frozen=True)
class Alert:
    """A rule whose condition holds.

    Attributes:
        step: of the newest row; -1 before the first.
        since: when the condition was first seen, in seconds of the caller's clock.
        immediate: it needn't hold for a while.
    """

    name: str
    route: Route
    message: str
    cause: str
    action: str
    values: Mapping[str, Value]
    step: int
    since: float
    immediate: bool = False

    def to_json(self) -> dict[str, Any]:
        """As JSON has it; numbers that aren't finite become text."""
        values = {name: value if _is_json(value) else str(value) for name, value in self.values.items()}
        return asdict(self) | {"values": values}


def _is_json(value: Value) -> bool:
    return isinstance(value, str) or math.isfinite(value)


def diagnose(history: RunHistory, now: float, thresholds: HealthConfig) -> tuple[Alert, ...]:
    """All conditions that hold at a time, in the order of the table; a pure function.

    A run that ended on purpose has none. An attempt before its first step announces nothing. Rules about steps read samples of this
    attempt only, and none once the newest is older than `fresh_seconds`.
    """
    if history.ended:
        return ()
    step = history.newest.step if history.newest else -1
    alerts = []
    for rule in RULES:
        if _applies(rule, history, now, thresholds) and (finding := rule.condition(history, now, thresholds)) is not None:
            about = (rule.name, rule.route, finding.message, rule.cause, rule.action, finding.values)
            alerts.append(Alert(*about, step=step, since=now, immediate=finding.immediate))
    return tuple(alerts)


def is_fresh(history: RunHistory, now: float, thresholds: HealthConfig) -> bool:
    """Whether the newest step is young enough to say something about now."""
    return history.last_step_at is not None and now - history.last_step_at < thresholds.fresh_seconds


def _applies(rule: Rule, history: RunHistory, now: float, thresholds: HealthConfig) -> bool:
    match rule.needs:
        case "steps":
            return is_fresh(history, now, thresholds)
        case "running":
            return not history.starting
        case "always":
            return rule.route == "page" or not history.starting


RULES = (
    Rule(
        "progress_stalled",
        "page",
        conditions.progress_stalled,
        "no step is finished: a collective that waits for a lost rank, a grouped product that read its offsets too early (marin #9183), "
        "a store that doesn't answer, or a loader that starves",
        "Read the newest stacks in hang-*.txt and the log of every rank. The watchdog ends the process by itself; if it already has "
        "several times at one step, start without the newest kernel feature.",
        needs="always",
    ),
    Rule(
        "loss_spike",
        "page",
        conditions.loss_spike,
        "the loss left its band: a bad stretch of data, a learning rate that is too high, or a tensor that an update damaged",
        "Compare norms of leaves before and after the first high step. If one collapsed, roll back and look for its cause; if none, wait "
        "one window, then roll back and skip the data.",
    ),
    Rule(
        "loss_jump",
        "page",
        conditions.loss_jump,
        "the loss is far above what this attempt has reached: a sharded norm that was counted several times collapsed a tensor once "
        "(marin #8073: parameter norm 150.7 → 21.4, loss 2.07 → 9.14), the run drifts away slowly, or a broken batch gave no number at all",
        "Stop the run before it overwrites its good checkpoints; restore the newest one from before the rise. A loss that is not finite "
        "has stopped the run already, before any save: look at the batch that the error names.",
    ),
    Rule(
        "grad_norm_high",
        "page",
        conditions.grad_norm_high,
        "gradient norm is high: in the large run 95 % of it came from the head (0.28 → 0.69 over 90,000 steps, judged harmless), "
        "a level far above that has meant spikes",
        "See in gradient_norm and the norms of leaves which leaf it comes from. One leaf: consider decay on it; all: lower the rate.",
    ),
    Rule(
        "grad_norm_rising",
        "announce",
        conditions.grad_norm_rising,
        "gradient norm rises quickly: what matters is its rate of change more than its level",
        "See in the norms of leaves which leaf it comes from, and whether its parameter norm grows with it.",
    ),
    Rule(
        "steps_skipped",
        "page",
        conditions.steps_skipped,
        "updates are skipped again and again: their loss or gradient norm lies far outside its window",
        "Look at the batches of the skipped steps; if they are sound, roll back to before the first of them.",
    ),
    Rule(
        "telemetry_gone",
        "page",
        conditions.telemetry_gone,
        "the run says nothing although its tasks are reported to run: a hung process, or a lost connection to where it reports",
        "Look at the tasks themselves. If they make steps, repair the reporting; if not, end them: the retry resumes.",
        needs="always",
    ),
    Rule(
        "run_down",
        "page",
        conditions.run_down,
        "the run says nothing and its tasks are not running: retries used up, quota, or a lost gang",
        "Read how the last attempt ended and start the run again; it continues from its newest checkpoint.",
        needs="always",
    ),
    Rule(
        "token_drops",
        "announce",
        conditions.token_drops,
        "experts get more tokens than they have room for: routing out of balance, or a longer context (capacity 1.15: 16 times as many "
        "drops at 16K as at 4K)",
        "See in expert_load which layers; check that the balancer's bias moves. Raise capacity_factor if it does.",
    ),
    Rule(
        "router_entropy",
        "announce",
        conditions.router_entropy,
        "tokens crowd on few experts: the balancer lags behind the router",
        "Compare loads of layers; check that the pending bias was restored with the checkpoint (marin #9352).",
    ),
    Rule(
        "router_bias",
        "announce",
        conditions.router_bias,
        "the selection bias runs away: the router's logits grow, and the balancer after them",
        "Look at the norm of the router's weights and at router_z_loss; consider decay on the router (marin #8818).",
    ),
    Rule(
        "throughput_low",
        "announce",
        conditions.throughput_low,
        "steps are slow: a throttled or failing device, a congested network, a slow loader",
        "See in throughput what the time goes to; look for one rank that is slower than the rest.",
    ),
    Rule(
        "mfu_low",
        "announce",
        conditions.mfu_low,
        "devices compute less than they could: see throughput_low; or uncoordinated garbage collection (2.5 %, marin #9205)",
        "See in throughput what the time goes to; compare with the plan's roofline.",
    ),
    Rule(
        "eval_regressed",
        "announce",
        conditions.eval_regressed,
        "an evaluation became worse: a phase border, a damaged restore, or an evaluation without the pending bias (marin #9352)",
        "Evaluate the checkpoint again without drops; compare the sets one by one: once a single one was at fault.",
        needs="running",
    ),
    Rule(
        "state_stale",
        "announce",
        conditions.state_stale,
        "nobody asks the scheduler any more: what is said about tasks is old",
        "Look at the process that watches the scheduler.",
        needs="running",
    ),
    Rule(
        "task_retried",
        "announce",
        conditions.task_retried,
        "a rank failed or was preempted, and the whole gang started again from the newest complete checkpoint",
        "Read how the attempt before ended. Retries at one step, or on one node, want a person.",
        needs="running",
    ),
    Rule(
        "off_track",
        "announce",
        conditions.off_track,
        "the run learns more slowly than the ladder forecast for this share of its training",
        "Check that mixture, context and evaluation set are those of the ladder: otherwise the forecast is void, and says nothing.",
        needs="running",
    ),
    Rule(
        "dead_expert_layer",
        "announce",
        conditions.dead_expert_layer,
        "routed experts of a layer don't learn, however even their loads are: the first layers of the large run had 200 to 430 times "
        "smaller gradients (marin #8818)",
        "Watch it: it starts early and doesn't heal. Known remedy: an auxiliary language-model loss on the first layers for 2,000 to "
        "4,000 steps.",
    ),
    Rule(
        "dead_experts",
        "announce",
        conditions.dead_experts,
        "experts don't learn although tokens may reach them: their outputs or their weights are zero, or their combine weights vanish",
        "Look at the parameter norms of those experts, and at whether their tokens are all dropped.",
    ),
    Rule(
        "sphere_drift",
        "announce",
        conditions.sphere_drift,
        "norms that the optimizer keeps constant are not: rounding, or a norm that is computed wrongly when sharded (marin #8073)",
        "Compare with one device. Rounding alone: keep the initial radius (radius = init).",
    ),
    Rule(
        "saturated_experts",
        "announce",
        conditions.saturated_experts,
        "the histogram of the balancer doesn't reach the quantiles of these experts, so their bias lags behind",
        "Widen the histogram's padding.",
    ),
    Rule(
        "host_rss_growth",
        "announce",
        conditions.host_rss_growth,
        "host memory grows from checkpoint to checkpoint: in the large run write futures were kept alive, an out-of-memory every 3 hours",
        "Plan a restart before the host is full; look at what the checkpoint writer keeps.",
        needs="running",
    ),
)
"""The table of `spec/training.md` §7, with ours beside what they resemble."""

RULE = {rule.name: rule for rule in RULES}
