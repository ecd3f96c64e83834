"""A training can be watched in the asset's page while it trains. The job is stopped in its tracks meanwhile, so that it can't end first."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from marin_core.artifact import ArtifactId
from tests.browser.conftest import PATIENCE_MS, screenshot
from tests.integration.deployment import Deployment, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1500)]
TRAINING = ArtifactId("checkpoints/live", "v1")
PICTURES = ("loss", "expert_load", "load_cv", "gradient_norm", "layer_gradients")
LEASE_SECONDS = 800.0
"""A job that is stopped gives no sign of life, and must not be taken for dead."""


def launch(deployment: Deployment) -> str:
    """A run of the training, with a lease that outlasts the test; its id."""
    answer = deployment.graphql(
        """mutation Launch($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
             __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
             ... on RunConfigValidationInvalid { errors { message } } } }""",
        {
            "params": {
                "mode": "default",
                "runConfigData": {"resources": {"lab": {"config": {"prefix": deployment.store.prefix, "lease_seconds": LEASE_SECONDS}}}},
                "selector": {
                    "repositoryLocationName": "marin",
                    "repositoryName": "__repository__",
                    "pipelineName": "__ASSET_JOB",
                    "assetSelection": [{"path": ["checkpoints", "live-v1"]}],
                },
            }
        },
    )["launchPipelineExecution"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    return str(answer["run"]["runId"])


def job_that_sent_pictures(deployment: Deployment) -> Path | None:
    """Folder of the training's job, once it has told Dagster of pictures."""
    for messages in (deployment.folder / "store" / ".jobs").glob("m-live-*/messages"):
        for line in messages.read_text().splitlines(keepends=True):
            if line.endswith("\n") and json.loads(line)["params"].get("payload", {}).get("kind") == "plots":
                return messages.parent
    return None


@contextmanager
def stopped(job: Path) -> Iterator[None]:
    """While the block runs, the job's process doesn't."""
    pid = int(json.loads((job / "process.json").read_text())["pid"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_the_pictures_of_a_training_are_seen_while_it_trains(page: Page, deployment: Deployment) -> None:
    run = launch(deployment)
    job = wait_for("the first pictures", lambda: job_that_sent_pictures(deployment))
    with stopped(job):
        page.goto(f"{deployment.url}/assets/checkpoints/live-v1?view=overview")
        row = page.locator("tr", has=page.get_by_role("cell", name="plots", exact=True)).first
        row.get_by_text("Show Markdown").click()
        for name in PICTURES:
            picture = page.locator(f"img[alt={name}]")
            expect(picture).to_be_visible(timeout=PATIENCE_MS)
            assert picture.evaluate("image => image.naturalWidth") > 200
        screenshot(page, deployment, "live")
        assert deployment.status(run) == "STARTED"
        assert deployment.store.record(TRAINING) is None
    wait_for("the end of the run", lambda: deployment.status(run) == "SUCCESS" or None)
    record = deployment.store.record(TRAINING)
    assert record is not None
    assert {check.name: check.passed for check in record.checks}["healthy"]
