"""A real Dagster: webserver, daemon and code server as processes, on a free port, with a home and a store of their own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from marin_core.artifact import Store

PROJECT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
EAGER = Path(__file__).parent / "eager"

INSTANCE = """
telemetry: {enabled: false}
storage: {custom: {module: marin_assets.sqlite, class: LabStorage, config: {base_dir: {env: DAGSTER_HOME}}}}
nux: {enabled: false}
run_coordinator: {module: dagster.core.run_coordinator, class: QueuedRunCoordinator}
concurrency:
  pools: {granularity: op, default_limit: 1}
  runs: {max_concurrent_runs: 2}
run_monitoring:
  enabled: true
  poll_interval_seconds: 5
  cancel_timeout_seconds: 60
  max_resume_run_attempts: 0
  free_slots_after_run_end_seconds: 5 # a killed run worker keeps its slot of the training pool until then
code_servers: {local_startup_timeout: 180}
"""


def wait_for[T](what: str, look: Callable[[], T | None], timeout_seconds: float = 600) -> T:
    """Look until there is something to see."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        seen = look()
        if seen:
            return seen
        time.sleep(0.25)
    raise TimeoutError(f"{what} did not happen within {timeout_seconds} s")


class Deployment:
    """Commands and queries against one running Dagster."""

    def __init__(self, folder: Path, port: int, experiments: str) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self.store = Store(f"file://{folder}/store")
        self.environment = {
            **os.environ,
            "DAGSTER_HOME": str(folder / "home"),
            "MARIN_PREFIX": self.store.prefix,
            "MARIN_EXPERIMENTS": experiments,
            "PYTHONPATH": f"{EAGER}{os.pathsep}{PROJECT}",
        }

    def command(self, *arguments: str, timeout_seconds: float = 600) -> str:
        """Run one of the environment's commands in the project; its output, or an error with it."""
        done = subprocess.run(
            [str(BIN / arguments[0]), *arguments[1:]],
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        assert done.returncode == 0, f"{arguments} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def graphql(self, query: str, variables: Mapping[str, Any] | None = None) -> Any:
        body = json.dumps({"query": query, "variables": variables or {}}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def materialize_all(self, keys: Sequence[Sequence[str]]) -> str:
        """What the UI's button does for assets with different partitions; the backfill's id."""
        answer = self.graphql(
            """mutation Launch($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
                 __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }""",
            {"params": {"assetSelection": [{"path": list(key)} for key in keys], "allPartitions": True}},
        )["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        return str(answer["backfillId"])

    def backfill_status(self, backfill: str) -> str:
        query = "query S($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"
        return str(self.graphql(query, {"id": backfill})["partitionBackfillOrError"]["status"])

    def finish_backfill(self, backfill: str, timeout_seconds: float = 600) -> str:
        """The final status of a backfill."""

        def ended() -> str | None:
            status = self.backfill_status(backfill)
            return None if status in ("REQUESTED", "CANCELING", "FAILING") else status

        return wait_for(f"the end of backfill {backfill}", ended, timeout_seconds)

    def runs(self) -> list[dict[str, Any]]:
        query = "{ runsOrError { ... on Runs { results { runId status tags { key value } assetSelection { path } } } } }"
        return list(self.graphql(query)["runsOrError"]["results"])

    def launch(self, key: Sequence[str]) -> str:
        """One run of one unpartitioned asset, through the queue; its id."""
        answer = self.graphql(
            """mutation Launch($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
                 __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }""",
            {
                "params": {
                    "mode": "default",
                    "selector": {
                        "repositoryLocationName": "marin",
                        "repositoryName": "__repository__",
                        "pipelineName": "__ASSET_JOB",
                        "assetSelection": [{"path": list(key)}],
                    },
                }
            },
        )["launchPipelineExecution"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def status(self, run: str) -> str:
        return next(str(each["status"]) for each in self.runs() if each["runId"] == run)

    def step_output(self, run: str) -> str:
        """What the UI shows as the stdout of a run's step."""
        events = self.graphql(
            """query E($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
                 ... on LogsCapturedEvent { fileKey } } } } }""",
            {"id": run},
        )["logsForRun"]["events"]
        key = next(event["fileKey"] for event in events if event)
        query = "query L($key: [String!]!) { capturedLogs(logKey: $key) { stdout } }"
        return str(self.graphql(query, {"key": [run, "compute_logs", key]})["capturedLogs"]["stdout"])

    def terminate(self, run: str) -> None:
        self.graphql("mutation T($id: String!) { terminateRun(runId: $id) { __typename } }", {"id": run})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    folder: Path, experiments: str = "tests.integration.experiments", environment: Mapping[str, str] | None = None
) -> Iterator[Deployment]:
    """`dagster dev` on a free port until the block ends; then every process it started is gone.

    Args:
        environment: more variables, for it and for all commands.
    """
    deployment = Deployment(folder, free_port(), experiments)
    deployment.environment |= environment or {}
    (folder / "home").mkdir()
    (folder / "home" / "dagster.yaml").write_text(INSTANCE)
    with (folder / "dagster.log").open("wb") as log:
        # A background process of a non-interactive shell ignores SIGINT, and Dagster would then ignore SIGTERM too.
        process = subprocess.Popen(
            [str(BIN / "dagster"), "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", deployment.url.rsplit(":", 1)[1]],
            cwd=PROJECT,
            env=deployment.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        )
    try:
        wait_for("the webserver's answer", lambda: _answers(deployment.url))
        yield deployment
    finally:
        end_tree(process.pid)
        process.wait(timeout=30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def end_tree(pid: int) -> None:
    """The whole tree, politely and then not."""
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in tree[:1]:
        process.terminate()
    _, alive = psutil.wait_procs(tree, timeout=20)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=10)
