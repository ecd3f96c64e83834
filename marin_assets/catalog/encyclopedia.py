"""Wikipedia: its own dumps, or text that the Wikimedia Foundation took from them."""

from marin_assets.catalog.entry import CatalogSource
from marin_core.data.formats.config import ParquetRows, WikipediaDump
from marin_core.data.sources.config import HttpFile, HttpFiles, HubFiles
from marin_core.experiment.documents import raw_source

LICENSE = "CC-BY-SA-4.0"
"""Of the articles' text; what was there before June 2023 came under CC-BY-SA-3.0, and most of it under the GFDL too."""


def wikipedia_dump(version: str, *, date: str, language: str = "en", sha256: str | None = None) -> CatalogSource:
    """A dump of one Wikipedia: all articles as they stood on a day, as wiki markup.

    Args:
        date: of the dump, such as `20260101`; old ones are deleted after some months.
        sha256: of the file; its server only publishes older kinds of checksums. None = recorded when it is fetched.
    """
    wiki = f"{language.replace('-', '_')}wiki"
    name = f"{wiki}-{date}-pages-articles-multistream.xml.bz2"
    source = HttpFiles(files=(HttpFile(url=f"https://dumps.wikimedia.org/{wiki}/{date}/{name}", sha256=sha256),))
    raw = raw_source(f"raw/{wiki}_dump", version, source, license=LICENSE, description=f"Dump of {wiki} of {date}.")
    return CatalogSource(raw, WikipediaDump())


def wikipedia(version: str, *, revision: str, dump: str = "20231101", language: str = "en") -> CatalogSource:
    """Articles of one Wikipedia as plain text, as the Wikimedia Foundation published them on the Hub."""
    source = HubFiles(repository="wikimedia/wikipedia", revision=revision, patterns=(f"{dump}.{language}/*.parquet",))
    name = f"raw/wikipedia_{language.replace('-', '_')}"
    raw = raw_source(name, version, source, license=LICENSE, description=f"Wikipedia, language {language}, dump of {dump}.")
    return CatalogSource(raw, ParquetRows(columns={"origin_id": "id", "url": "url", "title": "title"}))
