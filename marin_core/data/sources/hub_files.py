"""Files of a repository on the Hugging Face Hub at one commit.

huggingface_hub lists them and knows the checksums, the addresses and the login; the bytes come by our own client, which resumes, hashes
on the way and waits with all threads where the Hub asks for it (429s hit many workers at once, marin #2396).
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marin_core.data.sources.config import HubFiles
from marin_core.data.sources.content import check_content
from marin_core.data.sources.http import Http
from marin_core.data.sources.interface import BLOCK_BYTES, Fetched, Listed, Target, Watch
from marin_core.data.sources.patterns import Patterns
from marin_core.data.sources.urls import bare_url
from marin_core.errors import ConfigError, DataError, InfrastructureError


class OpenedHubFiles:
    """The files of a commit that match patterns."""

    def __init__(self, source: HubFiles, http: Http | None = None) -> None:
        self._source = source
        self._http = http or Http(allow_private=source.allow_private)
        self.connections = source.connections
        self.skipped: Counter[str] = Counter()
        self.notes = {"revision": source.revision}

    def files(self, watch: Watch) -> list[Listed]:
        """The files, as the Hub lists them for the commit.

        Raises:
            ConfigError: if huggingface_hub is set to offline.
            DataError: if repository or commit don't exist, are gated, or nothing matches.
            InfrastructureError: if the Hub doesn't answer.
        """
        from huggingface_hub.hf_api import RepoFile

        source = self._source
        wanted = Patterns(source.patterns)
        found = []
        with _hub_errors(source.repository, source.repository_type, source.revision, source.endpoint):
            tree = _api(source.endpoint).list_repo_tree(
                source.repository, recursive=True, revision=source.revision, repo_type=source.repository_type
            )
            for entry in tree:
                watch.check()
                if not isinstance(entry, RepoFile):
                    continue
                if entry.path in wanted:
                    found.append(Listed(entry.path, entry.size, entry))
                else:
                    self.skipped["other_pattern"] += 1
        if not found:
            raise DataError(
                f"no file of {source.repository} at {source.revision} matches {', '.join(source.patterns)}", advice="Correct 'patterns'."
            )
        return found

    def still(self, listed: Listed, fetched: Fetched, watch: Watch) -> bool:
        """A file of a commit never changes."""
        return fetched.revision == self._source.revision and fetched.size == listed.size

    def fetch(self, listed: Listed, path: Path, watch: Watch) -> Fetched:
        """Fetch a file, and check it against the checksum that the Hub has of it.

        Raises:
            DataError: if its bytes are others.
        """
        from huggingface_hub import get_token, hf_hub_url

        source = self._source
        url = hf_hub_url(
            source.repository,
            listed.name,
            repo_type=source.repository_type,
            revision=source.revision,
            endpoint=_api(source.endpoint).endpoint,
        )
        token = get_token()
        with Target(path, watch) as target:
            answer = self._http.fetch(url, target, {"Authorization": f"Bearer {token}"} if token else {}, expected=True)
        entry = listed.key
        kind, expected = ("sha256", entry.lfs.sha256) if entry.lfs is not None else ("git blob", entry.blob_id)
        got = target.sha256 if entry.lfs is not None else git_blob_id(path)
        if got != expected:
            check_content(path, listed.name, served=True)  # says it better, where a page or pointer came
            raise DataError(
                f"{bare_url(url)} has {kind} {got} and {target.size} bytes, but the Hub lists {expected} and {listed.size}",
                advice="Fetch it again; if it stays, report it to the repository's owner.",
            )
        return Fetched(target.size, target.sha256, etag=answer.etag, revision=source.revision)


def git_blob_id(path: Path) -> str:
    """Git's name of a file: sha1 of `blob SIZE\\0` and its bytes, lower-case hex."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def resolve_revision(repository: str, branch: str | None, repository_type: str = "dataset", endpoint: str | None = None) -> str:
    """The commit that a branch or tag of a repository stands at now (its default branch if none is given), 40 hex digits.

    Raises:
        ConfigError, DataError, InfrastructureError: as `OpenedHubFiles.files`.
    """
    with _hub_errors(repository, repository_type, branch or "main", endpoint):
        sha = _api(endpoint).repo_info(repository, revision=branch, repo_type=repository_type).sha
    if not sha:
        raise DataError(f"the Hub names no commit of {repository}", advice="Try again, or look it up on the repository's page.")
    return str(sha)


def _api(endpoint: str | None) -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint)


@contextmanager
def _hub_errors(repository: str, repository_type: str, revision: str, endpoint: str | None) -> Iterator[None]:
    """What the Hub refuses, as errors that say what to do; none repeats an answer's text, which may quote a request."""
    import httpx2
    from huggingface_hub.errors import (
        DisabledRepoError,
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = f"{_api(endpoint).endpoint}/{'datasets/' if repository_type == 'dataset' else ''}{repository}"
    try:
        yield
    except OfflineModeIsEnabled:
        raise ConfigError(
            f"{repository} would be fetched from the Hub, but HF_HUB_OFFLINE is set",
            advice="Unset it, or take the files from a folder with LocalFiles.",
        ) from None
    except (GatedRepoError, DisabledRepoError):
        raise DataError(
            f"{repository} is gated: the Hub gives it only to accounts that have agreed to its terms",
            advice=f"Agree at {page}, and set HF_TOKEN to a token of that account where the job runs.",
        ) from None
    except RevisionNotFoundError:
        raise DataError(
            f"{repository} has no revision {revision!r}; it may have been deleted",
            advice=f"Look at {page}/commits, and pin one that exists: `marin resolve hf:{repository}` prints the newest.",
        ) from None
    except RepositoryNotFoundError:
        raise DataError(
            f"the Hub has no {repository_type} {repository!r}, or doesn't show it to this account",
            advice=f"Look at {page}; a private one needs HF_TOKEN.",
        ) from None
    except (HfHubHTTPError, httpx2.HTTPError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status is not None and 400 <= status < 500 and status not in (408, 429):
            raise DataError(f"the Hub answered {status} for {repository}", advice=f"Look at {page}.") from None
        raise InfrastructureError(
            f"the Hub doesn't answer for {repository} ({f'status {status}' if status else type(error).__name__})", advice="Try again later."
        ) from None
