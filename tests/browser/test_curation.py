"""A person sees on one page what rules dropped and why, with examples: read in a real browser, and held against the record."""

import json
import re

import pytest
from playwright.sync_api import Page, expect

from marin_core.artifact import ArtifactId, Record
from tests.browser.conftest import PATIENCE_MS, screenshot
from tests.integration.deployment import Deployment

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def record(deployment: Deployment) -> Record:
    found = deployment.store.record(ArtifactId("manifests/curated", "v1"))
    assert found is not None
    return found


def test_reasons_stand_in_a_table_with_their_share(page: Page, deployment: Deployment, record: Record) -> None:
    page.goto(f"{deployment.url}/assets/manifests/curated-v1?view=overview")
    row = page.locator("tr", has=page.get_by_role("cell", name="reasons", exact=True)).first
    expect(row).to_be_visible(timeout=PATIENCE_MS)
    shown = re.sub(r"\s+", " ", row.inner_text())
    reasons = record.tables["reasons"]
    assert {row["outcome"] for row in reasons} == {"kept", "dropped"}
    assert sum(int(row["documents"]) for row in reasons) == 302
    for each in reasons:
        assert f"{each['outcome']} {each['reason']} {each['bytes']} {each['documents']}".replace("  ", " ") in shown, (each, shown)
    screenshot(page, deployment, "reasons")


def test_samples_show_what_was_dropped_as_text(page: Page, deployment: Deployment, record: Record) -> None:
    page.goto(f"{deployment.url}/assets/manifests/curated-v1?view=overview")
    row = page.locator("tr", has=page.get_by_role("cell", name="samples", exact=True)).first
    expect(row).to_be_visible(timeout=PATIENCE_MS)
    shown = row.inner_text()
    dropped = [each for each in record.tables["samples"] if each["outcome"] == "dropped"]
    assert any("script" in str(each["text"]) for each in dropped)
    for each in dropped[:5]:
        assert str(each["text"])[:30].replace("<", "&lt;").replace(">", "&gt;") in shown.replace("<", "&lt;").replace(">", "&gt;"), each
    assert page.title() != "taken over"
    screenshot(page, deployment, "samples")


def test_the_counts_on_disk_are_those_of_the_page(deployment: Deployment, record: Record) -> None:
    totals = {"kept": 0, "dropped": 0}
    for shard in ("00000", "00001"):
        found = deployment.store.record(ArtifactId("filtered/curated", "v1", shard))
        assert found is not None
        counts = json.loads(deployment.store.read_payload(found, "counts.json"))
        totals["kept"] += counts["kept"]
        totals["dropped"] += sum(counts["dropped"].values())
    for fate, documents in totals.items():
        assert documents == sum(int(row["documents"]) for row in record.tables["reasons"] if row["outcome"] == fate)
