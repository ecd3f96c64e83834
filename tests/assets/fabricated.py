"""A store of artifacts that nobody built: real records, attempts and payloads, written as a builder writes them, in milliseconds."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Record, StepContext, Store
from marin_core.artifact.code import CodeTable
from marin_core.artifact.objects import local_state
from marin_core.artifact.record import Code, File, manifest_digest
from marin_core.artifact.store import attempt_folder
from marin_core.config import Config
from tests.artifact.test_store import claim, record, success


class Plain(Config):
    """Configuration of a fabricated artifact."""

    text: str = "as before"
    inputs: tuple[str, ...] = ()


def step(name: str, *deps: ArtifactStep, version: str = "v1", text: str = "as before", job: str = "toy", **options: Any) -> ArtifactStep:
    """A handle that reads all of its dependencies."""

    def config(ctx: StepContext) -> Plain:
        return Plain(text=text, inputs=tuple(ctx.address(dep) for dep in deps))

    return ArtifactStep(name, version, job=job, build_config=config, deps=deps, **options)


@dataclass
class Fabricated:
    """A lab whose experiments declare what `declare` was last called with."""

    folder: Path
    targets: list[ArtifactStep] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return Store(str(self.folder))

    def declare(self, *targets: ArtifactStep) -> None:
        self.targets = list(targets)

    def build(
        self,
        step: ArtifactStep,
        partition: str | None = None,
        content: str | dict[str, str] = "data",
        table: CodeTable | None = None,
        **changes: Any,
    ) -> Record:
        """Commit an artifact as today's declaration says, made from what is in the store.

        Args:
            content: text of the file `data`, or of several files by name.
            table: code that built it.
            changes: other fields of the record.
        """
        graph = ArtifactGraph([step])
        artifact = ArtifactId(step.name, step.version, partition)
        number = len(self.store.attempts(artifact)) + 1
        files = self._write(
            self.folder / artifact.path / attempt_folder(number), content if isinstance(content, dict) else {"data": content}
        )
        reads = [read for dep in step.deps for read in step.reads(dep, partition)]
        values: dict[str, Any] = {
            "fingerprint": graph.fingerprint(step),
            "identity": graph.identity(step),
            "inputs": tuple(found.as_input() for found in self.store.records(reads).values() if found is not None),
            "payload": attempt_folder(number),
            "files": files,
            "manifest_digest": manifest_digest(files),
            "content_digest": manifest_digest(files),
            "attempt": number,
            "code": Code(digest=table.digest if table else ""),
        }
        built = record(artifact, **(values | changes))
        assert self.store.claim(artifact, claim(number))
        return self.store.commit(artifact, success(built), table)

    def _write(self, folder: Path, contents: dict[str, str]) -> tuple[File, ...]:
        files = []
        for name, text in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            checksum = hashlib.sha256(text.encode()).hexdigest()
            files.append(File(path=name, size=len(text), sha256=checksum, stamp=local_state(path).stamp))
        return tuple(files)

    def payload(self, step: ArtifactStep, partition: str | None = None) -> Path:
        """The one file of an artifact's payload."""
        found = self.store.record(ArtifactId(step.name, step.version, partition))
        assert found is not None
        path = self.store.payload_path(found)
        assert path is not None
        return path / "data"
