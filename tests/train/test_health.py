"""Every rule fires on its incident, alone, and none on healthy runs; alerts are raised once, resolved once and survive the process."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.errors import ConfigError
from marin_core.train.health.conditions import dead_entries
from marin_core.train.health.config import BASELINE_SECONDS, HERO, HealthConfig
from marin_core.train.health.history import RunHistory, Sample, merge_moments
from marin_core.train.health.monitor import Health, read_alerts
from marin_core.train.health.rules import RULE, RULES, Alert, diagnose
from marin_core.train.metrics import PER_EXPERT, ROUTED_EXPERTS, Row

STEP_SECONDS, LAYERS, EXPERTS = 15.0, 4, 384
Change = Callable[[Row, float], None]
"""Changes a row, given the minutes since the incident began."""


class Scene:
    """A run whose time passes as the test says; checked every minute, as a real one is."""

    def __init__(self, folder: Path, *, moe: bool = True, borders: tuple[int, ...] = (), step: int = 10_000) -> None:
        self.now, self.step, self.moe, self.borders, self.folder = 1_000.0, step, moe, borders, folder
        self.rng = np.random.default_rng(1)
        self.lines: list[tuple[str, bool]] = []
        self.began = self.now
        self.begin()

    def begin(self) -> None:
        """A new attempt, in a new process."""
        self.history = RunHistory(self.now, EXPERTS if self.moe else None, self.borders)

        def told(alert: Alert, raised: bool) -> None:
            self.lines.append((alert.name, raised))

        path = self.folder / "alerts.jsonl"
        self.health = Health(path, self.history, HERO, told, clock=lambda: self.now, wall=lambda: self.now + 1e9)

    @property
    def raised(self) -> set[str]:
        return {name for name, was in self.lines if was}

    def row(self) -> Row:
        """A healthy row; the loss falls and wobbles, everything else wobbles."""
        loss = 2.0 + 3.0 * math.exp(-self.step / 3_000) + 0.01 * self.rng.normal()
        row: Row = {"step": self.step, "loss": loss, "gradient_norm": 0.3 + 0.05 * self.rng.random(), "skipped_steps": 1}
        row |= {"throughput/tokens_per_second": 3.1e6 * (1 + 0.02 * self.rng.normal()), "throughput/mfu": 0.26}
        row |= {"memory/host_rss_bytes": 7e11 * (1 + 0.001 * self.rng.random()), "sphere_norm_drift": 1e-6}
        if self.moe:
            row |= {"drop_fraction": 0.02 + 0.03 * self.rng.random(), "routing_entropy": 5.945, "bias_min": -120.0, "bias_max": 90.0}
            row |= {"saturated_share": 0.001, "load": [[5] * EXPERTS] * LAYERS} if self.step % 10 == 0 else {"saturated_share": 0.001}
        if self.moe and self.step % 10 == 0:
            experts = 1e-3 * (1 + 0.3 * self.rng.random((LAYERS, EXPERTS)))
            row["norms"] = {ROUTED_EXPERTS: (0.02 * (1 + self.rng.random(LAYERS))).tolist(), PER_EXPERT: experts.tolist()}
        return row

    def run(self, minutes: float, change: Change | None = None) -> None:
        """Train for a while; `change` spoils rows."""
        began = self.now
        while self.now < began + 60 * minutes:
            row = self.row()
            if change is not None:
                change(row, (self.now - began) / 60)
            self.health.add(row)
            self.step += 1
            self._pass(STEP_SECONDS)

    def idle(self, minutes: float, *, seen: bool) -> None:
        """Time without a step."""
        for _ in range(round(60 * minutes / STEP_SECONDS)):
            if seen:
                self.health.tell(RunHistory.seen)
            self._pass(STEP_SECONDS)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        if (self.now - self.began) % 60 < seconds:
            self.health.check()


def values(**numbers: float) -> Change:
    return lambda row, minutes: row.update({name.replace("__", "/"): number for name, number in numbers.items()})


def every(ratio: float, name: str, number: float) -> Change:
    """Spoils a share of the rows."""
    return lambda row, minutes: row.update({name: number}) if row["step"] % 10 < 10 * ratio else None


def higher_loss(nats: float) -> Change:
    return lambda row, minutes: row.update(loss=row["loss"] + nats)


def stall(scene: Scene) -> None:
    scene.idle(25, seen=True)


def drift(scene: Scene) -> None:
    scene.run(240, lambda row, minutes: row.update(loss=row["loss"] + 1.5 * minutes / 240))


def broken(scene: Scene) -> None:
    scene.run(1, values(loss=math.nan))


def rising_gradient(scene: Scene) -> None:
    scene.run(60, lambda row, minutes: row.update(gradient_norm=0.3 + 0.5 * minutes / 60))


def skipping(scene: Scene) -> None:
    scene.run(14, lambda row, minutes: row.update({"skipped_steps": 1 + minutes // 2}))


def silent(scene: Scene, *, running: bool) -> None:
    for _ in range(20):
        scene.health.tell(lambda history, at: history.scheduler_said(at, running=running))
        scene.idle(1, seen=False)


def evaluated(score: float, history: RunHistory, at: float) -> None:
    history.evaluated(score)


def evaluations(*scores: float) -> Callable[[Scene], None]:
    def happen(scene: Scene) -> None:
        for score in scores:
            scene.health.tell(partial(evaluated, score))
            scene.run(10)

    return happen


def stale(scene: Scene) -> None:
    scene.health.tell(lambda history, at: history.scheduler_said(at, running=True))
    scene.run(15)


def retried(scene: Scene) -> None:
    scene.begin()
    scene.health.tell(RunHistory.retried)
    scene.idle(30, seen=True)
    scene.run(10)


def off_track(scene: Scene) -> None:
    scene.history.verdict = "off_track"
    scene.run(10)


def dead_layer(row: Row, minutes: float) -> None:
    if "norms" in row:
        row["norms"][ROUTED_EXPERTS][0] /= 300


def dead_expert(row: Row, minutes: float) -> None:
    """It gets as many tokens as any other."""
    if "norms" in row:
        row["norms"][PER_EXPERT][3][17] = 0.0


def growing(scene: Scene) -> None:
    for checkpoint in range(5):
        scene.run(30, values(memory__host_rss_bytes=7e11 * (1 + 0.02 * checkpoint)))
        scene.health.tell(lambda history, at: history.checkpoint_saved())


INCIDENTS: Mapping[str, Callable[[Scene], None]] = {
    "progress_stalled": stall,
    "loss_spike": lambda scene: scene.run(15, higher_loss(0.3)),
    "loss_jump": drift,
    "grad_norm_high": lambda scene: scene.run(10, values(gradient_norm=2.01)),
    "grad_norm_rising": rising_gradient,
    "steps_skipped": skipping,
    "telemetry_gone": lambda scene: silent(scene, running=True),
    "run_down": lambda scene: silent(scene, running=False),
    "token_drops": lambda scene: scene.run(8, values(drop_fraction=0.071)),
    "router_entropy": lambda scene: scene.run(8, values(routing_entropy=5.919)),
    "router_bias": lambda scene: scene.run(8, values(bias_min=-401)),
    "throughput_low": lambda scene: scene.run(30, every(0.6, "throughput/tokens_per_second", 1.9e6)),
    "mfu_low": lambda scene: scene.run(30, every(0.6, "throughput/mfu", 0.14)),
    "eval_regressed": evaluations(2.2, 2.1, 2.11, 2.11),
    "state_stale": stale,
    "task_retried": retried,
    "off_track": off_track,
    "dead_expert_layer": lambda scene: scene.run(10, dead_layer),
    "dead_experts": lambda scene: scene.run(15, dead_expert),
    "sphere_drift": lambda scene: scene.run(8, values(sphere_norm_drift=1.1e-3)),
    "saturated_experts": lambda scene: scene.run(8, values(saturated_share=0.011)),
    "host_rss_growth": growing,
}
TOGETHER = {"telemetry_gone": {"progress_stalled"}, "run_down": {"progress_stalled"}, "grad_norm_high": {"grad_norm_rising"}}
"""What is bound to fire too."""


def test_every_rule_has_an_incident() -> None:
    assert set(INCIDENTS) == set(RULE)
    assert len(RULE) == len(RULES)


@pytest.mark.parametrize("name", INCIDENTS)
def test_a_rule_fires_on_its_incident_and_alone(tmp_path: Path, name: str) -> None:
    scene = Scene(tmp_path)
    scene.run(75)
    assert scene.lines == []
    INCIDENTS[name](scene)
    assert scene.raised - TOGETHER.get(name, set()) == {name}
    assert [line for line in scene.lines if line == (name, True)] == [(name, True)], "raised more than once"
    alert = next(alert for alert in scene.health.raised if alert.name == name)
    assert (alert.route, alert.cause, alert.action) == (RULE[name].route, RULE[name].cause, RULE[name].action)
    assert alert.message
    assert json.loads(json.dumps(alert.to_json(), allow_nan=False))["step"] == alert.step


@pytest.mark.parametrize("name", ["loss_spike", "token_drops", "throughput_low", "dead_expert_layer", "dead_experts", "progress_stalled"])
def test_an_alert_resolves_when_its_condition_is_gone(tmp_path: Path, name: str) -> None:
    scene = Scene(tmp_path)
    scene.run(75)
    INCIDENTS[name](scene)
    scene.run(40)
    assert scene.lines == [(name, True), (name, False)]
    assert scene.health.open == ()


def test_routes_are_those_of_the_table() -> None:
    pages = {rule.name for rule in RULES if rule.route == "page"}
    assert pages == {"progress_stalled", "loss_spike", "loss_jump", "grad_norm_high", "steps_skipped", "telemetry_gone", "run_down"}


# Healthy runs.


def test_a_healthy_dense_run_is_silent(tmp_path: Path) -> None:
    scene = Scene(tmp_path, moe=False, step=0)
    for evaluation in range(4):
        scene.run(60)
        scene.health.tell(partial(evaluated, 2.5 - 0.1 * evaluation))
        scene.health.tell(lambda history, at: history.checkpoint_saved())
    scene.health.finish()
    scene.idle(60, seen=False)
    assert scene.lines == []
    assert not (tmp_path / "alerts.jsonl").exists()


def test_a_healthy_mixture_of_experts_is_silent_from_its_first_step(tmp_path: Path) -> None:
    """It starts out of balance: a fifth is dropped in the first minutes, and quantiles lie outside the histogram."""
    scene = Scene(tmp_path, step=0)
    scene.idle(40, seen=True)
    scene.run(4, values(drop_fraction=0.19, routing_entropy=5.5, saturated_share=0.3, gradient_norm=5.0))
    scene.run(40, values(saturated_share=0.05))
    for _ in range(6):
        scene.run(30)
        scene.health.tell(lambda history, at: history.checkpoint_saved())
        scene.idle(3, seen=True)  # an evaluation
    assert scene.lines == []


def test_a_healthy_run_with_a_phase_border_and_a_planned_restart_is_silent(tmp_path: Path) -> None:
    """A new mixture has a higher loss, at once and for good; a new attempt has nothing to compare with."""
    scene = Scene(tmp_path, borders=(10_300, 10_900))
    new_mixture: Change = lambda row, minutes: row.update(loss=row["loss"] + 1.2 * (row["step"] >= 10_300))  # noqa: E731
    scene.run(150, new_mixture)
    assert scene.step > 10_300 + 200
    scene.idle(5, seen=False)
    scene.begin()
    scene.idle(20, seen=True)
    scene.run(120, new_mixture)
    assert scene.lines == []


# The rules about rules.


def test_a_jump_that_is_no_phase_border_is_not_silenced(tmp_path: Path) -> None:
    scene = Scene(tmp_path, borders=(10_200,))
    scene.run(75)
    scene.run(15, higher_loss(1.2))
    assert {"loss_spike", "loss_jump"} <= scene.raised


def test_a_loss_that_is_no_number_is_not_silenced_by_a_border_and_does_not_wait(tmp_path: Path) -> None:
    scene = Scene(tmp_path, borders=(10_300,))
    while scene.step < 10_300:
        scene.run(0.25)
    scene.health.add(scene.row() | {"loss": math.inf})
    assert [alert.name for alert in scene.health.check()] == ["loss_jump"]
    assert scene.health.check() == ()


def test_a_condition_of_four_minutes_is_no_alert(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(30)
    for _ in range(5):
        scene.run(4, values(drop_fraction=0.5, gradient_norm=40))
        scene.run(6)
    assert scene.lines == []


def test_a_run_that_ended_on_purpose_pages_for_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(30, values(drop_fraction=0.5))
    scene.health.finish()
    assert scene.lines == [("token_drops", True), ("token_drops", False)]
    silent(scene, running=False)
    assert len(scene.lines) == 2


def test_an_attempt_that_starts_announces_nothing_and_pages_when_it_never_does(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.history.verdict, scene.history.scheduler_seen_at = "off_track", 0.0
    scene.health.tell(RunHistory.retried)
    scene.idle(59, seen=True)
    assert scene.lines == []
    scene.idle(8, seen=True)
    assert scene.lines == [("progress_stalled", True)]


def test_stale_samples_say_nothing_about_now_and_silence_heals_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(20, values(drop_fraction=0.5))
    names = {alert.name for alert in diagnose(scene.history, scene.now + 1_000, HERO)}
    assert names == {"progress_stalled", "telemetry_gone"}
    scene.idle(30, seen=True)
    assert {alert.name for alert in scene.health.open} == {"token_drops", "progress_stalled"}


def test_a_spike_stays_open_while_the_loss_is_high_and_an_hour_later_is_the_new_level(tmp_path: Path) -> None:
    """The size of a step doesn't matter: a huge one widens the band of the hour after it as well."""
    scene = Scene(tmp_path)
    scene.run(75)
    scene.run(50, higher_loss(0.9))
    assert scene.lines == [("loss_spike", True)]
    scene.run(40, higher_loss(0.9))
    assert scene.lines == [("loss_spike", True), ("loss_spike", False)]


@settings(max_examples=10, deadline=None)
@given(nats=st.floats(0.1, 50), minutes=st.integers(12, 50))
def test_a_step_of_any_size_is_a_spike(nats: float, minutes: int) -> None:
    history, rng = RunHistory(0.0), np.random.default_rng(minutes)
    for step in range(60 * 4 + minutes * 4):
        history.add({"step": step, "loss": 2 + 0.01 * rng.normal() + (nats if step >= 240 else 0)}, 15.0 * step)
    assert "loss_spike" in {alert.name for alert in diagnose(history, 15.0 * step, HERO)}


def test_another_attempt_is_not_compared_with(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(70)
    scene.begin()
    scene.run(70, higher_loss(3.0))
    assert scene.lines == []


def test_few_samples_and_half_of_them_fire_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(2.25, values(throughput__mfu=0.01))
    assert scene.history.newest is not None
    assert len(scene.history.samples) == 9
    assert diagnose(scene.history, scene.now, HERO) == ()
    scene.run(20)
    scene.run(40, every(0.5, "throughput/mfu", 0.01))
    assert scene.lines == []


def test_what_has_a_scale_is_silent_without_a_preset(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(20, values(gradient_norm=1e3, bias_max=1e5, throughput__mfu=1e-3, throughput__tokens_per_second=1.0))
    assert diagnose(scene.history, scene.now, HealthConfig()) == ()
    assert {alert.name for alert in diagnose(scene.history, scene.now, HERO)} == {
        "grad_norm_high",
        "router_bias",
        "throughput_low",
        "mfu_low",
    }


@pytest.mark.parametrize(
    ("scores", "regressed"),
    [([2.0, 1.9, 1.93], False), ([2.0, 2.041], True), ([2.0, 2.039], False), ([2.0, 1.9, 2.001], True), ([2.0], False), ([], False)],
)
def test_an_evaluation_is_compared_with_the_last_two(scores: list[float], regressed: bool) -> None:
    history = RunHistory(0.0)
    history.add({"step": 1, "loss": 2.0}, 1.0)
    for score in scores:
        history.evaluated(score)
    assert [alert.name for alert in diagnose(history, 2.0, HERO)] == (["eval_regressed"] if regressed else [])


# Dead experts.


def test_dead_experts_are_seen_by_gradient_and_not_by_count(tmp_path: Path) -> None:
    """Loads are perfectly even, and one expert learns nothing; then loads are not, and all learn."""
    scene = Scene(tmp_path)
    scene.run(20, dead_expert)
    (alert,) = scene.health.open
    assert alert.name == "dead_experts"
    assert alert.values == {"experts": 1, "with_tokens": 1, "first_layer": 3, "first_expert": 17}
    other = tmp_path / "other"
    other.mkdir()
    idle = Scene(other)
    idle.run(20, lambda row, minutes: row.update(load=[[0] + [5] * (EXPERTS - 1)] * LAYERS) if "load" in row else None)
    assert idle.lines == []


def test_an_expert_that_is_dead_once_is_not_dead(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(60, lambda row, minutes: dead_expert(row, minutes) if row["step"] % 20 == 0 else None)
    assert scene.lines == []


@settings(max_examples=100, deadline=None)
@given(norms=st.lists(st.floats(1e-3, 0.1), min_size=2, max_size=50), data=st.data())
def test_exactly_the_entries_far_below_the_median_are_dead(norms: list[float], data: st.DataObject) -> None:
    assert dead_entries(norms, 1 / 200) == []
    most = (len(norms) - 1) // 2
    dead = data.draw(st.sets(st.integers(0, len(norms) - 1), max_size=most))
    spoiled = [0.0 if index in dead and index % 2 else norm * 1e-6 if index in dead else norm for index, norm in enumerate(norms)]
    assert set(dead_entries(spoiled, 1 / 200)) == dead


# What is remembered.


@settings(max_examples=60, deadline=None)
@given(losses=st.lists(st.floats(-5, 20), min_size=1, max_size=200), seconds=st.floats(0.001, 2.0))
def test_merged_samples_have_the_moments_of_all_their_rows(losses: list[float], seconds: float) -> None:
    history = RunHistory(0.0)
    for step, loss in enumerate(losses):
        history.add({"step": step, "loss": loss}, step * seconds)
    count, mean, squares = merge_moments(list(history.samples))
    assert count == len(losses)
    assert mean == pytest.approx(np.mean(losses), rel=1e-9, abs=1e-9)
    assert squares == pytest.approx(np.var(losses) * len(losses), rel=1e-9, abs=1e-9)
    assert min(sample.floor for sample in history.samples) == min(losses)
    assert history.lowest_floor(len(losses) * seconds, 0) == min(losses)


def test_a_fast_run_is_remembered_in_bounded_memory() -> None:
    history = RunHistory(0.0)
    for step in range(40_000):
        history.add({"step": step, "loss": 3.0 if step else 1.0}, step / 5)
    assert len(history.samples) <= 1_442
    assert history.lowest_floor(8_000.0, 300) == 1.0, "the lowest loss of the attempt is older than what is remembered"


def test_a_broken_loss_leaves_the_moments_alone() -> None:
    both = Sample.of({"step": 0, "loss": 2.0}, 0.0).followed_by(Sample.of({"step": 1, "loss": math.nan}, 0.1))
    assert (both.count, both.mean, both.floor, both.finite) == (1, 2.0, 2.0, False)


# The record.


def test_the_record_holds_every_alert_once_across_attempts(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(20, values(drop_fraction=0.5))
    path = tmp_path / "alerts.jsonl"
    with path.open("ab") as file:
        file.write(b'{"event": "resolved", "time": 1')
    scene.begin()
    assert [alert.name for alert in scene.health.open] == ["token_drops"]
    scene.run(20, values(drop_fraction=0.5))
    scene.run(2)
    events = read_alerts(path)
    assert [(event["event"], event["alert"]["name"]) for event in events] == [("raised", "token_drops"), ("resolved", "token_drops")]
    assert path.read_bytes().count(b"\n") == 2
    assert events[0]["time"] - events[0]["alert"]["since"] == pytest.approx(300)
    assert events[0]["alert"]["values"] == {"value": 0.5, "limit": 0.07}


def test_a_disk_that_refuses_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path)
    scene.run(3, values(drop_fraction=0.5))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            scene.run(10, values(drop_fraction=0.5))
    assert (tmp_path / "alerts.jsonl").read_bytes() == b""
    scene.run(2, values(drop_fraction=0.5))
    assert [event["event"] for event in read_alerts(tmp_path / "alerts.jsonl")] == ["raised"]


def test_a_loop_that_makes_no_step_is_noticed_by_the_watching_thread(tmp_path: Path) -> None:
    from threading import Event

    told = Event()
    thresholds = HealthConfig(interval_seconds=0.01, pending_seconds=0.02, startup_seconds=0.05)
    health = Health(tmp_path / "alerts.jsonl", RunHistory(0.0), thresholds, lambda alert, raised: told.set())
    with health.watching():
        assert told.wait(300)
    assert [alert.name for alert in health.open] == ["progress_stalled"]


# Configuration and documentation.


def test_thresholds_of_the_large_run_are_the_published_ones() -> None:
    assert (HERO.gradient_norm, HERO.router_bias, HERO.tokens_per_second, HERO.mfu) == (2.0, 400, 2.0e6, 0.15)
    assert HERO.router_entropy(384) == pytest.approx(5.92, abs=5e-4)
    with pytest.raises(ConfigError, match=r"drop_fraction.*1\.5"):
        HealthConfig(drop_fraction=1.5)


def table() -> dict[str, tuple[str, str]]:
    """Rule → condition and route, as the page says."""
    page = (Path(__file__).parents[2] / "docs/explanation/health.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    return {name.strip("`"): (condition, route) for name, condition, route in rows}


def test_the_page_lists_the_rules_with_their_routes() -> None:
    assert {name: route for name, (_, route) in table().items()} == {rule.name: rule.route for rule in RULES}


def test_the_page_has_the_thresholds_that_rules_read() -> None:
    expected = {
        "progress_stalled": f"for {HERO.stalled_seconds / 60:.0f} minutes",
        "loss_spike": f"mean + {HERO.loss_spike_sigmas:.0f} σ of the {BASELINE_SECONDS / 60:.0f} minutes",
        "loss_jump": f"lowest loss of {HERO.floor_seconds / 60:.0f} minutes is {HERO.loss_jump_nats:.0f} nat above",
        "grad_norm_high": f"above {HERO.gradient_norm}",
        "grad_norm_rising": f"median of {HERO.fresh_seconds / 60:.0f} minutes above {HERO.gradient_norm_rise} times",
        "steps_skipped": f"{HERO.skipped_steps} or more skipped updates in {HERO.fresh_seconds / 60:.0f} minutes",
        "telemetry_gone": f"for {HERO.silent_seconds / 60:.0f} minutes",
        "run_down": f"for {HERO.silent_seconds / 60:.0f} minutes",
        "token_drops": f"above {HERO.drop_fraction:.0%}".replace("%", " %"),
        "router_entropy": f"ln E − {HERO.router_entropy_slack_nats} ({HERO.router_entropy(384):.2f} for 384 experts)",
        "router_bias": f"±{HERO.router_bias:.0f}",
        "throughput_low": f"below {(HERO.tokens_per_second or 0) / 1e6} M tokens",
        "mfu_low": f"below {HERO.mfu:.0%}".replace("%", " %"),
        "eval_regressed": f"more than {HERO.eval_regression:.0%}".replace("%", " %"),
        "state_stale": f"older than {HERO.scheduler_stale_seconds / 60:.0f} minutes",
        "task_retried": f"first {HERO.retry_seconds / 60:.0f} minutes",
        "dead_expert_layer": f"1/{1 / HERO.dead_ratio:.0f}",
        "sphere_drift": f"above {HERO.sphere_drift:.1%}".replace("%", " %"),
        "saturated_experts": f"{HERO.saturated_share:.0%} after step {HERO.saturated_after_steps:,}".replace("%", " %"),
        "host_rss_growth": f"over {HERO.rss_checkpoints} of them, by more than {HERO.rss_growth:.0%}".replace("%", " %"),
    }
    conditions = {name: condition for name, (condition, _) in table().items()}
    assert {name for name, words in expected.items() if words not in conditions[name]} == set()


def test_health_needs_no_jax() -> None:
    code = "import sys, marin_core.train.health; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
