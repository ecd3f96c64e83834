"""A deployment that launches on a cluster: how it says so, and what it refuses when definitions are made."""

from pathlib import Path

import pytest

from marin_assets.builder import Builder, BuildError, QuietEvents
from marin_assets.lab import Lab
from marin_assets.launch import InlineLauncher, LocalLauncher
from marin_assets.launch.kubernetes import CLUSTER_LEASE_SECONDS, load_profile, open_connection, open_kubernetes_launcher, require_places
from marin_assets.launch.kubernetes.launcher import KubernetesLauncher
from marin_assets.place import LOCAL, default_launcher
from marin_core.artifact import ArtifactGraph, ArtifactStep, Resources, Store
from marin_core.config import Config
from marin_core.errors import ConfigError, ExitCode
from tests.launch.kubernetes.desk import Desk
from tests.launch.kubernetes.scripted_api import Fault, ScriptedApi


class Nothing(Config):
    """A configuration without fields."""


def step(name: str, resources: Resources) -> ArtifactStep:
    return ArtifactStep(name, "v1", job="toy", build_config=lambda ctx: Nothing(), resources=resources)


def test_a_deployment_says_where_it_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher, profile, found in ((None, None, LOCAL), ("local", "h100", LOCAL), ("kubernetes", "h100", "h100")):
        for variable, value in (("MARIN_LAUNCHER", launcher), ("MARIN_PROFILE", profile)):
            monkeypatch.delenv(variable, raising=False) if value is None else monkeypatch.setenv(variable, value)
        assert default_launcher() == found
    monkeypatch.setenv("MARIN_LAUNCHER", "slurm")
    with pytest.raises(ConfigError, match="'slurm'"):
        default_launcher()
    monkeypatch.setenv("MARIN_LAUNCHER", "kubernetes")
    monkeypatch.delenv("MARIN_PROFILE")
    with pytest.raises(ConfigError, match="MARIN_PROFILE is not set"):
        default_launcher()


def test_a_profile_is_found_by_name_or_path(tmp_path: Path) -> None:
    assert load_profile("testbed").name == "testbed"
    with pytest.raises(ConfigError, match="can't be read") as raised:
        load_profile("nowhere")
    assert "testbed" in raised.value.advice
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        load_profile(str(tmp_path / "mine.yaml"))


def test_a_lab_launches_where_its_deployment_says(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}")
    local, cluster = Lab(prefix=store.prefix), Lab(prefix=store.prefix, launcher="testbed")
    assert isinstance(local.open_launcher(store), LocalLauncher)
    launcher = cluster.open_launcher(store)
    assert isinstance(launcher, KubernetesLauncher)
    assert launcher is cluster.open_launcher(store)  # one connection a process
    assert launcher.host == "k8s-testbed-team-a"
    assert isinstance(cluster.open_launcher(store, inline=True), InlineLauncher)
    assert (local.lease(), cluster.lease()) == (60.0, CLUSTER_LEASE_SECONDS)
    assert launcher.handle("m-x-abcdefghij-a1").url == f"{store.prefix}/.jobs/m-x-abcdefghij-a1"
    assert open_kubernetes_launcher("testbed", "gs://other") is not launcher
    assert open_connection("testbed") is open_connection("testbed")


def test_what_can_never_be_placed_is_refused_with_its_step_and_line() -> None:
    fits = step("toys/fits", Resources(cpus=2))
    inline = step("toys/inline", Resources(cpus=10_000, inline=True))
    require_places("cpu", [fits, inline])
    with pytest.raises(ConfigError, match=r"toys/huge@v1 \(.*test_opening\.py:\d+\).*can ever hold"):
        require_places("cpu", [fits, step("toys/huge", Resources(cpus=10_000))])


def test_a_refused_job_closes_its_attempt_and_isnt_tried_again(tmp_path: Path) -> None:
    """So that the next materialization, of a corrected step, has an attempt of its own."""
    made = step("toys/refused", Resources())
    with ScriptedApi() as api:
        desk = Desk(api, tmp_path)
        api.fail(Fault("POST", "jobsets", 422, "Invalid", "spec.replicatedJobs: too long", times=100))
        builder = Builder(ArtifactGraph([made]), desk.store, desk.store, desk.launcher, QuietEvents())
        with pytest.raises(BuildError, match="too long") as raised:
            builder.build(made, made.id)
    assert raised.value.exit_code == ExitCode.BAD_CONFIG
    [attempt] = desk.store.attempts(made.id)
    assert attempt.end is not None
    assert (attempt.end.state, attempt.end.failure, attempt.claim.host) == ("failed", "config", "k8s-toy-team-a")
    assert attempt.end.log == f"{desk.store.prefix}/.jobs/{attempt.claim.job}"


class Interrupted(QuietEvents):
    """A run that is interrupted at its first look, with or without its job being meant."""

    def __init__(self, means_job: bool) -> None:
        self.means_job = means_job

    def see(self, seen: object) -> None:
        raise KeyboardInterrupt

    def stop_means_job(self) -> bool:
        return self.means_job


@pytest.mark.parametrize("means_job", [True, False])
def test_an_interrupted_run_cancels_its_job_only_if_it_is_meant(tmp_path: Path, means_job: bool) -> None:
    made = step("toys/interrupted", Resources())
    with ScriptedApi() as api:
        desk = Desk(api, tmp_path)
        builder = Builder(ArtifactGraph([made]), desk.store, desk.store, desk.launcher, Interrupted(means_job))
        with pytest.raises(KeyboardInterrupt):
            builder.build(made, made.id)
        assert len(api.of("jobsets")) == (0 if means_job else 1)
        [attempt] = desk.store.attempts(made.id)
        assert (attempt.end is None) == (not means_job)
        if attempt.end is not None:
            assert attempt.end.failure == "preempted"
