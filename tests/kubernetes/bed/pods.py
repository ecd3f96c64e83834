"""What a pod's manifest asks of the machine: command, environment, and the status that its process leads to. No processes here."""

import datetime
import re
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.bed.api import Manifest

PREFIX = "bed.marin-assets/"
"""Annotations of a pod that is acted, not run: `simulate` (to be true), `seconds`, `exit-code`, `reason`, `waiting`."""


@dataclass(frozen=True)
class Act:
    """How a simulated pod behaves.

    Attributes:
        seconds: until it ends by itself.
        exit_code: what it ends with then.
        reason: of the container's end; `OOMKilled` is what the kernel's killing looks like.
        waiting: why its container never starts, such as `ImagePullBackOff`.
        saving_seconds: between being asked to stop and its end with 143, as a job that saves first.
    """

    seconds: float = 1e9
    exit_code: int = 0
    reason: str | None = None
    waiting: str | None = None
    saving_seconds: float = 0.0

    def annotations(self) -> dict[str, str]:
        """Return the annotations that make a pod act like this."""
        given = {
            "seconds": self.seconds,
            "exit-code": self.exit_code,
            "reason": self.reason,
            "waiting": self.waiting,
            "saving-seconds": self.saving_seconds,
        }
        return {PREFIX + "simulate": "true"} | {PREFIX + name: str(value) for name, value in given.items() if value is not None}


def annotated_act(pod: Manifest) -> Act | None:
    """Return how the pod's annotations say that it acts; None for a pod whose command runs."""
    annotations = pod["metadata"].get("annotations", {})
    if annotations.get(PREFIX + "simulate") != "true":
        return None
    return Act(
        seconds=float(annotations.get(PREFIX + "seconds", Act.seconds)),
        exit_code=int(annotations.get(PREFIX + "exit-code", Act.exit_code)),
        reason=annotations.get(PREFIX + "reason"),
        waiting=annotations.get(PREFIX + "waiting"),
        saving_seconds=float(annotations.get(PREFIX + "saving-seconds", Act.saving_seconds)),
    )


def environment_of(pod: Manifest, address: str) -> dict[str, str]:
    """Return the first container's variables: values, fields of the pod, and `$(NAME)` of the variables before."""
    found: dict[str, str] = {}
    for variable in pod["spec"]["containers"][0].get("env", []):
        reference = variable.get("valueFrom", {}).get("fieldRef")
        if reference is not None:
            found[variable["name"]] = field_of(pod, reference["fieldPath"], address)
        elif "valueFrom" in variable:
            raise ValueError(f"{variable['name']}: the process-kubelet only knows fields of the pod, not {sorted(variable['valueFrom'])}")
        else:
            found[variable["name"]] = expand(variable.get("value", ""), found)
    return found


def command_of(pod: Manifest, environment: dict[str, str]) -> list[str]:
    container = pod["spec"]["containers"][0]
    return [expand(part, environment) for part in [*container.get("command", []), *container.get("args", [])]]


def field_of(pod: Manifest, path: str, address: str) -> str:
    """Return the value of a fieldRef. Raises `KeyError` for a label that the pod lacks, which a kubelet would give as empty."""
    match = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
    if match:
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    metadata, spec = pod["metadata"], pod["spec"]
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec["nodeName"],
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": address,
        "status.hostIP": "127.0.0.1",
    }
    return str(fields[path])


def expand(text: str, environment: dict[str, str]) -> str:
    """Replace `$(NAME)` as the API says: an unknown name stays as it is, `$$(NAME)` is the text itself."""

    def replace(match: re.Match[str]) -> str:
        return match[0][1:] if match[0].startswith("$$") else environment.get(match[1], match[0])

    return re.sub(r"\$?\$\(([A-Za-z0-9_.-]+)\)", replace, text)


def running_status(pod: Manifest, address: str, started: str) -> dict[str, Any]:
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "hostIP": "127.0.0.1",
        "startTime": started,
        "conditions": [_condition(kind, "True") for kind in ("Initialized", "ContainersReady", "Ready")],
        "containerStatuses": [_container(pod, {"running": {"startedAt": started}}, ready=True)],
    }


def waiting_status(pod: Manifest, reason: str, message: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [_container(pod, state, ready=False)]}


def ended_status(pod: Manifest, exit_code: int, started: str, message: str = "", reason: str | None = None) -> dict[str, Any]:
    """The status after a container's end. A pod whose container ended with 0 succeeded."""
    ended: dict[str, Any] = {
        "exitCode": exit_code,
        "reason": reason or ("Completed" if exit_code == 0 else "Error"),
        "startedAt": started,
        "finishedAt": now(),
        "message": message,
    }
    return {
        "phase": "Succeeded" if exit_code == 0 else "Failed",
        "conditions": [_condition(kind, "False") for kind in ("ContainersReady", "Ready")],
        "containerStatuses": [_container(pod, {"terminated": ended}, ready=False)],
    }


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, status: str) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": now()}


def _container(pod: Manifest, state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    container = pod["spec"]["containers"][0]
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": container["image"],
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
    }
