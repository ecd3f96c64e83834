"""A real training in the pods of a gang, each with its own address, as Kueue preempts and resumes it."""

import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from marin_assets.builder import Builder, QuietEvents, Retries
from marin_assets.launch.contract import NOTHING_SPECIAL, Handle, Observation, State
from marin_core import distributed
from marin_core.artifact import ArtifactGraph, ArtifactStep, Claim, Record, Resources, Store
from marin_core.artifact.ending import endings_of_pods, verdict
from marin_core.artifact.job import JobSpec
from marin_core.artifact.job_folder import log_stream
from marin_core.errors import ConfigError, ExitCode
from marin_core.report import SilentReporter
from marin_jobs import runtime
from marin_jobs.gang import Place
from tests.jobs.pods import Pods, RunningPod, wait_until
from tests.jobs.test_gang import spec_of
from tests.storage.gcs import free_port
from tests.train.drill import Lab, resumed_at
from tests.train.gang_run import quick_environment


class PodLauncher:
    """Starts a job's pods on this machine, and starts them again in the same attempt when all have saved, as Kueue does."""

    host, adopts = "k8s-test", True

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self.pods: Pods | None = None
        self.running: list[RunningPod] = []

    def handle(self, name: str) -> Handle:
        return Handle(name, self._folder / name)

    def submit(self, name: str, spec: JobSpec, environment: Mapping[str, str], resources: Resources = NOTHING_SPECIAL) -> Handle:
        self.pods = Pods(self._folder, spec, f"{spec.prefix}/.jobs/{name}", "", {**self._environment, **environment})
        assert self.pods.folder.write_spec(spec.model_dump_json())
        self._start(self.pods)
        return self.handle(name)

    def _start(self, pods: Pods) -> None:
        port = free_port()
        self.running = [
            pods.start(process, MARIN_COORDINATOR=f"127.1.0.1:{port}", MARIN_POD_IP=f"127.1.0.{process + 1}")
            for process in range(pods.spec.processes)
        ]

    def observe(self, handle: Handle) -> Observation:
        if self.pods is None or any(pod.process.poll() is None for pod in self.running):
            begun = self.running and self.running[0].log()
            return Observation(State.RUNNING if begun else State.PENDING)  # until then it gives no signs of life itself
        code, message = verdict(endings_of_pods(self.pods.folder.outcomes()))
        if code == ExitCode.PREEMPTED:
            self._start(self.pods)
            return Observation(State.PENDING)
        return Observation(State.SUCCEEDED if code == ExitCode.DONE else State.FAILED, code, message or "")

    def cancel(self, handle: Handle) -> None:
        for pod in self.running:
            pod.process.kill()
            pod.process.wait()

    def logs(self, handle: Handle, tail_lines: int) -> str:
        return "\n".join(pod.log() for pod in self.running)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_preempted_gang_of_pods_resumes_in_its_attempt_and_ends_like_one_that_nothing_happened_to(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab", tmp_path / "xla")
    lab.build_data()
    undisturbed = lab.undisturbed(2)
    step = lab.training("in_pods", 2)
    environment = quick_environment(1, tmp_path / "xla")
    launcher = PodLauncher(tmp_path, {name: value for name, value in environment.items() if name != "JAX_NUM_CPU_DEVICES"})
    record, newest = preempted(lab, step, lab.store, launcher, lambda: rows_in(lab.output(step)))
    assert launcher.pods is not None
    outcomes = launcher.pods.folder.outcomes()
    assert [outcome.exit_code for outcome in outcomes] == [143, 143, 0, 0]
    assert sorted(outcome.process for outcome in outcomes[:2]) == [0, 1]
    assert record.attempt == 1
    assert resumed_at(launcher.pods.stream(log_stream(0))) == newest >= 8
    assert record.content_digest == undisturbed
    lab.store.require_intact(record, every_byte=True)


def preempted(lab: Lab, step: ArtifactStep, store: Store, launcher: PodLauncher, rows: Callable[[], int]) -> tuple[Record, int]:
    """Build it and drain one of its pods in mid-training; its record, and the step of the checkpoint with which the pods ended.

    Args:
        rows: of metrics that the first pods have written.
    """
    builder = Builder(ArtifactGraph([step]), lab.store, store, launcher, QuietEvents(), Retries(first_delay_seconds=0.0))
    built: list[Record] = []
    building = threading.Thread(target=lambda: built.append(builder.build(step, step.id)[0]), daemon=True)
    building.start()
    try:
        wait_until(lambda: not building.is_alive() or rows() >= 8, "rows")
        assert building.is_alive(), launcher.logs(launcher.handle(""), 0)
        first = launcher.running
        first[-1].process.send_signal(signal.SIGTERM)  # one alone: all must agree on the step
        assert [pod.end() for pod in first] == [ExitCode.PREEMPTED] * len(first), launcher.logs(launcher.handle(""), 0)
        newest = int(first[0].log().partition("saved a checkpoint after step ")[2].split()[0])
        building.join(900)
        assert built, launcher.logs(launcher.handle(""), 0)
    finally:
        launcher.cancel(launcher.handle(""))
    return built[0], newest


def rows_in(output: Path) -> int:
    return max((path.read_bytes().count(b"\n") for path in output.glob("*/metrics.jsonl")), default=0)


def test_a_pod_that_waits_for_its_gang_has_nothing_to_save_and_ends_at_once(tmp_path: Path) -> None:
    """JAX would wait for the others for a quarter of an hour."""
    spec = spec_of(tmp_path, {"happens": "nothing"})
    store = Store(spec.prefix)
    assert store.claim(spec.id, Claim(number=1, job="m-1", fingerprint="f" * 16, submitted_at="now", host="k8s"))
    pods = Pods(tmp_path, spec, f"{spec.prefix}/.jobs/m-1", "from tests.jobs import toy_gang; toy_gang.install()")
    assert pods.folder.write_spec(spec.model_dump_json())
    port = free_port()

    def serves() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.1.0.1", port)) == 0

    with pods.start(0, MARIN_COORDINATOR=f"127.1.0.1:{port}", MARIN_POD_IP="127.1.0.1") as pod:
        wait_until(lambda: serves() or pod.process.poll() is not None, "the coordinator")
        pod.process.terminate()
        assert pod.end() == ExitCode.PREEMPTED, pod.log()
    assert pod.told()["message"] == "it was asked to stop before it had begun"


def test_two_pods_agree_on_a_step_to_stop_at_and_go_on_from_it(tmp_path: Path) -> None:
    """One of them is asked to stop, as when its node is drained."""
    spec = spec_of(tmp_path, {"happens": "stop"}, devices_per_process=2)
    store = Store(spec.prefix)
    assert store.claim(spec.id, Claim(number=1, job="m-1", fingerprint="f" * 16, submitted_at="now", host="k8s"))
    pods = Pods(tmp_path, spec, f"{spec.prefix}/.jobs/m-1", "from tests.jobs import toy_gang; toy_gang.install()")
    assert pods.folder.write_spec(spec.model_dump_json())
    for code in (ExitCode.PREEMPTED, ExitCode.DONE):
        port = free_port()
        at = [{"MARIN_COORDINATOR": f"127.1.0.1:{port}", "MARIN_POD_IP": f"127.1.0.{process + 1}"} for process in range(2)]
        with pods.start(0, **at[0]) as lead, pods.start(1, **at[1]) as other:
            assert [lead.end(), other.end()] == [code, code], lead.log() + other.log()
    built = store.record(spec.id)
    assert built is not None
    assert built.metrics == {"total": 5, "first_step": 2}
    assert sorted(outcome.exit_code for outcome in pods.folder.outcomes()) == [0, 0, 143, 143]
    assert "[process 1] sees 4 devices" in pods.stream(log_stream(1))


def test_the_store_of_a_gang_must_be_seen_by_all_its_pods(tmp_path: Path) -> None:
    """Process 1 is told of a folder that its node doesn't have."""
    spec = spec_of(tmp_path, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "from_lead", lambda value: str(tmp_path / "elsewhere"))
        with pytest.raises(ConfigError, match="doesn't see"):
            runtime._follow(spec, Store(spec.prefix), Place(1, 2, "127.0.0.1:1"), SilentReporter())
        patch.setattr(distributed, "from_lead", lambda value: "")
        with pytest.raises(distributed.PeerLostError, match="couldn't begin"):
            runtime._follow(spec, Store(spec.prefix), Place(1, 2, "127.0.0.1:1"), SilentReporter())
