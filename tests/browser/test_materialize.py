"""The how-to on the UI's buttons is followed: a family and what reads it are built by clicks alone."""

import json
import re

import pytest
from playwright.sync_api import Page

from marin_core.artifact import ArtifactId
from tests.integration.deployment import PROJECT, Deployment, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1500)]

BUTTONS = set(re.findall(r"\*\*(.+?)\*\*", (PROJECT / "docs" / "how-to" / "materialize-in-the-ui.md").read_text()))
SHARDS = [ArtifactId("documents/by_hand", "v1", key) for key in ("00000", "00001")]
WHOLE = ArtifactId("manifests/by_hand", "v1")


def press(page: Page, label: str) -> None:
    """Press a button that the how-to names; an icon may stand before its words."""
    assert label in BUTTONS
    page.get_by_role("button", name=re.compile(f"{label}$")).first.click()


def states(deployment: Deployment, *artifacts: ArtifactId) -> list[list[str]]:
    return [[attempt.state for attempt in deployment.store.attempts(each)] for each in artifacts]


def test_what_is_missing_is_asked_about_and_the_run_says_what_it_is(page: Page, deployment: Deployment) -> None:
    page.goto(f"{deployment.url}/assets/manifests/by_hand-v1")
    press(page, "Materialize")
    press(page, "Confirm")
    run = wait_for("the run's end", lambda: next((each for each in runs_of(deployment, "by_hand-v1") if each["status"] == "FAILURE"), None))
    assert deployment.store.record(WHOLE) is None
    query = """query E($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
                 ... on ExecutionStepFailureEvent { message error { message } failureMetadata { description } } } } } }"""
    assert "documents/by_hand@v1" in json.dumps(deployment.graphql(query, {"id": run["runId"]}))


def test_a_family_and_then_what_reads_it_are_built_once(page: Page, deployment: Deployment) -> None:
    page.goto(f"{deployment.url}/assets/documents/by_hand-v1")
    press(page, "Materialize…")
    press(page, "Missing")
    press(page, "Launch backfill")
    wait_for("both shards", lambda: all(deployment.store.record(each) for each in SHARDS))
    page.goto(f"{deployment.url}/assets/manifests/by_hand-v1")
    press(page, "Materialize")
    wait_for("the manifest", lambda: deployment.store.record(WHOLE))
    page.reload()
    press(page, "Materialize")
    wait_for("the run that is served", lambda: [each["status"] for each in runs_of(deployment, "by_hand-v1")].count("SUCCESS") >= 4)
    assert states(deployment, *SHARDS, WHOLE) == [["succeeded"]] * 3


def runs_of(deployment: Deployment, name: str) -> list[dict[str, str]]:
    """Runs of assets whose key ends so."""
    return [run for run in deployment.runs() if any(each["path"][-1] == name for each in run["assetSelection"] or [])]
