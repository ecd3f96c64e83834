"""A deployment's cluster: its profile, the one connection that a process has to it, and whether experiments have a place there."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from marin_assets.launch.kubernetes.following import Connection
from marin_assets.launch.kubernetes.launcher import KubernetesLauncher
from marin_assets.launch.kubernetes.placement import place
from marin_assets.launch.kubernetes.profile import Profile
from marin_assets.place import PROJECT, home
from marin_core.artifact.step import ArtifactStep, Resources
from marin_core.errors import ConfigError

PROFILES = PROJECT / "deploy" / "kubernetes" / "profiles"

CLUSTER_LEASE_SECONDS = 300.0
"""Least lease of a job on a cluster. A lost node is noticed after 40 to 50 s, and until then the job is thought to run and is silent; only
a job that hangs for longer is to be ended by its lease."""


@cache
def load_profile(launcher: str) -> Profile:
    """The profile at a path, or of a name in deploy/kubernetes/profiles.

    Raises:
        ConfigError: there is none, or it is wrong.
    """
    path = Path(launcher) if launcher.endswith((".yaml", ".yml")) else PROFILES / f"{launcher}.yaml"
    try:
        text = path.read_text()
    except OSError as error:
        known = ", ".join(sorted(each.stem for each in PROFILES.glob("*.yaml")))
        raise ConfigError(
            f"the cluster's profile {launcher!r} can't be read: {error}", advice=f"Give the path of a YAML file, or one of {known}."
        ) from error
    return Profile.parse(text, str(path))


@cache
def open_connection(launcher: str) -> Connection:
    """This process's connection to the cluster of a profile."""
    return Connection.open(load_profile(launcher))


@cache
def open_kubernetes_launcher(launcher: str, prefix: str) -> KubernetesLauncher:
    """This process's launcher of jobs that build in a store, on the cluster of a profile."""
    connection = open_connection(launcher)
    return KubernetesLauncher(connection, connection.profile.jobs or f"{prefix}/.jobs", home() / "jobs")


def require_places(launcher: str, steps: Iterable[ArtifactStep]) -> None:
    """Refuse experiments with jobs for which the cluster can never have room.

    Raises:
        ConfigError: says which step, where it is declared, and what would fit.
    """
    profile = load_profile(launcher)
    placed: set[Resources] = set()
    for step in steps:
        if step.resources.inline or step.pin is not None or step.resources in placed:
            continue
        try:
            place(profile, step.resources)
        except ConfigError as error:
            raise ConfigError(f"{step.id} ({step.declared_at}): {error.message}", advice=error.advice) from error
        placed.add(step.resources)
