"""A headless browser, and a Dagster in which everything that it looks at has been made."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.data.conftest import sentences, write_jsonl
from tests.integration.deployment import Deployment, running

PATIENCE_MS = 300_000
SCRIPT = "<script>document.title = 'taken over'</script> too short"


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One for all files: what the experiments `small` and `curated` declare is built, the training of `live` isn't."""
    folder = tmp_path_factory.mktemp("browser")
    write_jsonl(folder / "documents" / "a.jsonl", [*sentences(150, seed=1), SCRIPT])
    write_jsonl(folder / "documents" / "b.jsonl", [*sentences(150, seed=2), "short"])
    with running(folder, "tests.browser.experiments", {"MARIN_TEST_DOCUMENTS": str(folder / "documents")}) as deployment:
        deployment.command("marin", "materialize", "small", "curated", timeout_seconds=800)
        yield deployment


def screenshot(page: Page, deployment: Deployment, name: str) -> None:
    """Kept in the test's folder, for whoever looks into a failure."""
    page.screenshot(path=str(Path(deployment.folder) / f"{name}.png"))


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail("no Chromium found; install one, for example the package chromium")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(PATIENCE_MS)
        yield page
        browser.close()
