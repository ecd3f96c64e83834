"""What a person sees: the lineage, a loss plot and a check, read in a real browser and held against the records."""

import pytest
from playwright.sync_api import Page, expect

from marin_core.artifact import ArtifactId
from tests.browser.conftest import PATIENCE_MS, screenshot
from tests.integration.deployment import Deployment

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1500)]


def test_the_lineage_shows_every_artifact_by_name(page: Page, deployment: Deployment) -> None:
    page.goto(f"{deployment.url}/assets/evals/small-v1?view=lineage&lineageScope=upstream&lineageDepth=6")
    for label in ("topics-v1", "small-v1", "topics_held_out-v1"):
        expect(page.get_by_text(label).first).to_be_visible(timeout=PATIENCE_MS)
    screenshot(page, deployment, "lineage")


def test_the_loss_plot_of_the_training_is_a_picture_in_the_page(page: Page, deployment: Deployment) -> None:
    record = deployment.store.record(ArtifactId("checkpoints/small", "v1"))
    assert record is not None
    page.goto(f"{deployment.url}/assets/checkpoints/small-v1?view=overview")
    expect(page.get_by_text(record.content_digest).first).to_be_visible(timeout=PATIENCE_MS)
    row = page.locator("tr", has=page.get_by_role("cell", name="loss", exact=True)).first
    row.get_by_text("Show Markdown").click()
    picture = page.locator("img[alt=loss]")
    expect(picture).to_be_visible(timeout=PATIENCE_MS)
    assert picture.evaluate("image => image.naturalWidth") > 200
    screenshot(page, deployment, "loss")


def test_a_check_reads_as_the_record_says(page: Page, deployment: Deployment) -> None:
    record = deployment.store.record(ArtifactId("checkpoints/small", "v1"))
    assert record is not None
    check = next(check for check in record.checks if check.name == "loss_fell")
    page.goto(f"{deployment.url}/assets/checkpoints/small-v1?view=checks&checkDetail=loss_fell")
    said = read(page, "loss_fell", check.description, "Evaluation result")
    assert ("Passed" in said, "Failed" in said) == (check.passed, not check.passed), said
    screenshot(page, deployment, "check")


def read(page: Page, *wanted: str) -> str:
    """The page's visible text, once it has everything wanted; live pages are never idle, so text is what to wait for."""
    said = ""
    for _ in range(PATIENCE_MS // 500):
        said = page.locator("body").inner_text()
        if all(text in said for text in wanted):
            return said
        page.wait_for_timeout(500)
    pytest.fail(f"the page never showed all of {wanted}; it says:\n{said}")
