"""The part of the Hugging Face Hub's protocol that fetching uses, on this machine: commits, paged trees, files, LFS behind signed URLs."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from tests.data.sources.web import Handler, Request, WebServer

PAGE = 2
"""Entries of a page of a tree; the real one has 1,000."""


@dataclass
class Repository:
    """A dataset repository with one commit.

    Attributes:
        files: path → bytes.
        lfs: paths that lie in LFS.
        gated: only for those who send `token`.
    """

    commit: str
    files: Mapping[str, bytes]
    lfs: frozenset[str] = frozenset()
    gated: bool = False
    token: str = "hf_secret_token"  # noqa: S105


@dataclass
class Hub(WebServer):
    """A web server that also is a hub.

    Attributes:
        repositories: `owner/name` → repository.
        corrupted: bytes that are served instead of those that the tree lists, by path in the repository.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    corrupted: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.routes.append(self._route)

    def _route(self, handler: Handler, request: Request) -> bool:
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        if parts[:2] == ["api", "datasets"]:
            self._api(handler, request, "/".join(parts[2:4]), parts[4:])
        elif parts[0] == "datasets" and len(parts) > 5 and parts[3] == "resolve":
            self._resolve(handler, request, "/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
        elif parts[0] == "lfs":
            repository = self.repositories["/".join(parts[1:3])]
            path = "/".join(parts[3:])
            handler.serve(self.corrupted.get(path, repository.files[path]))
        else:
            return False
        return True

    def _refused(self, handler: Handler, request: Request, name: str, revision: str) -> bool:
        repository = self.repositories.get(name)
        if repository is None:
            handler.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif (
            repository.gated and request.headers.get("Authorization", request.headers.get("authorization")) != f"Bearer {repository.token}"
        ):
            handler.answer(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        elif revision not in (repository.commit, "main"):
            handler.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            return False
        return True

    def _api(self, handler: Handler, request: Request, name: str, rest: list[str]) -> None:
        revision = rest[1] if len(rest) > 1 else "main"
        if self._refused(handler, request, name, revision):
            return
        repository = self.repositories[name]
        if not rest or rest[0] == "revision":
            document = {"id": name, "sha": repository.commit, "private": False, "tags": [], "downloads": 0, "likes": 0, "siblings": []}
            handler.answer(200, json.dumps(document).encode(), {"Content-Type": "application/json"})
            return
        entries = [self._entry(repository, path) for path in repository.files]
        entries += [{"type": "directory", "path": folder, "oid": "0" * 40, "size": 0} for folder in _folders(repository)]
        start = int(parse_qs(urlsplit(request.target).query).get("cursor", ["0"])[0])
        headers = {"Content-Type": "application/json"}
        if start + PAGE < len(entries):
            headers["Link"] = f'<{self.url}{request.path}?recursive=true&cursor={start + PAGE}>; rel="next"'
        handler.answer(200, json.dumps(entries[start : start + PAGE]).encode(), headers)

    def _entry(self, repository: Repository, path: str) -> dict[str, object]:
        data = repository.files[path]
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        entry: dict[str, object] = {"type": "file", "path": path, "size": len(data), "oid": blob}
        if path in repository.lfs:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return entry

    def _resolve(self, handler: Handler, request: Request, name: str, revision: str, path: str) -> None:
        if self._refused(handler, request, name, revision):
            return
        repository = self.repositories[name]
        if path in repository.lfs:  # as a signed address of another host, which must not see the token
            place = f"http://localhost:{self.port}/lfs/{name}/{path}?X-Amz-Signature=signed-secret"
            handler.answer(302, b"", {"Location": place})
        else:
            handler.serve(self.corrupted.get(path, repository.files.get(path)))


def _folders(repository: Repository) -> list[str]:
    return sorted({path.rpartition("/")[0] for path in repository.files} - {""})
