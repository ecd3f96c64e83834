"""What an attempt begins with when its store is a bucket, and what becomes of what came before."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from marin_core.artifact import Claim, End, Store
from marin_core.artifact.job import JobSpec
from marin_core.artifact.job_folder import JobFolder
from marin_core.artifact.store import payload_folder
from marin_core.errors import InfrastructureError
from marin_core.train.checkpoint.mirror import Mirror
from marin_core.train.run_record import carry_over_run
from marin_jobs.fence import Fence
from marin_jobs.output import prepare_output
from tests.train.test_mirror import Run


class Attempts:
    """Attempts of one training, each on a machine of its own unless said otherwise."""

    def __init__(self, folder: Path) -> None:
        self.store = Store("memory://lab")
        self._folder = folder

    def spec(self, number: int, fingerprint: str = "f" * 16) -> JobSpec:
        return JobSpec(
            name="checkpoints/toy",
            version="v1",
            partition=None,
            job="train",
            prefix=self.store.prefix,
            config={},
            fingerprint=fingerprint,
            identity={},
            inputs=(),
            attempt=number,
            scratch=str(self._folder),
            lease_seconds=60.0,
        )

    def begin(self, number: int, fence: Fence | None = None, machine: str = "", fingerprint: str = "f" * 16) -> tuple[Path, Mirror]:
        """Prepare the output of an attempt or of one of its pods, after all before it were lost."""
        spec = self.spec(number, fingerprint)
        claim = Claim(number=number, job=f"m-{number}", fingerprint=fingerprint, submitted_at="now", host="any")
        self.store.claim(spec.id, claim)
        for before in range(1, number):
            self.store.close(spec.id, before, End(state="lost", ended_at="now", failure="infrastructure", error="gone"))
        generation = None if fence is None else fence.generation
        mirror = Mirror(self.store.objects, f"{spec.id.path}/{payload_folder(number, generation)}")
        scratch = self._folder / (machine or f"machine-{number}-{generation}") / f"m-{number}"
        return prepare_output(spec, self.store, scratch, carry_over_run, fence, mirror), mirror

    def folders(self) -> list[str]:
        """Folders of attempts, or of their pods, in which there is anything."""
        files = self.store.objects.files(self.spec(1).id.path)
        return sorted({path.partition("/checkpoints/")[0] for path in files if "/checkpoints/" in path})


@pytest.fixture
def attempts(tmp_path: Path) -> Iterator[Attempts]:
    yield Attempts(tmp_path)
    fsspec.filesystem("memory").store.clear()


def train(output: Path, mirror: Mirror, steps: int) -> None:
    """Train a run on to a number of steps, save, and send."""
    run = Run(output)
    run.rows = [f"step {step} of life 0" for step in range(steps - 1)]
    run.train()
    run.save()
    mirror.update(output)


def steps(output: Path) -> list[int]:
    return sorted(int(path.name) for path in output.glob("checkpoints/*"))


def test_an_attempt_goes_on_with_what_one_on_another_machine_has_sent(attempts: Attempts) -> None:
    train(*attempts.begin(1), steps=3)
    output, mirror = attempts.begin(2)
    assert steps(output) == [3]
    assert attempts.folders() == ["attempt-2"]
    train(output, mirror, steps=6)
    assert steps(attempts.begin(3)[0]) == [3, 6]


def test_what_its_own_disk_has_is_at_least_as_new(attempts: Attempts) -> None:
    output, mirror = attempts.begin(1, machine="one")
    train(output, mirror, steps=3)
    train(output, Mirror(Store("memory://elsewhere").objects, "lost"), steps=6)  # it died before that was sent
    assert steps(attempts.begin(2, machine="one")[0]) == [3, 6]
    assert attempts.folders() == ["attempt-2"]


def test_a_machine_that_comes_back_takes_what_is_newer_elsewhere(attempts: Attempts) -> None:
    train(*attempts.begin(1, machine="one"), steps=3)
    train(*attempts.begin(2, machine="two"), steps=6)
    assert steps(attempts.begin(3, machine="one")[0]) == [3, 6]


def test_one_that_died_while_it_took_over_is_passed_over(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    train(*attempts.begin(1), steps=3)

    def dies(self: Mirror, run_dir: Path, earlier: Mirror | None) -> None:
        self._objects.replace(f"{self.folder}/checkpoints/3/state/rows", b"half")
        raise InfrastructureError("the machine is gone", advice="Try again.")

    with monkeypatch.context() as patch:
        patch.setattr(Mirror, "begin", dies)
        with pytest.raises(InfrastructureError):
            attempts.begin(2)
    output, _ = attempts.begin(3)
    assert steps(output) == [3]
    assert (output / "checkpoints/3/state/rows").read_text() != "half"
    assert attempts.folders() == ["attempt-3"]


def test_a_run_of_another_configuration_is_not_gone_on_with(attempts: Attempts) -> None:
    train(*attempts.begin(1, fingerprint="e" * 16), steps=3)
    assert steps(attempts.begin(2)[0]) == []
    assert attempts.folders() == []


def test_pods_go_on_from_each_other_and_leave_alone_what_may_be_committed(attempts: Attempts, tmp_path: Path) -> None:
    fences = [Fence(JobFolder(str(tmp_path / "jobs")), f"{number:020d}") for number in range(1, 5)]
    fences[0].seal_older()
    train(*attempts.begin(1, fences[0]), steps=3)
    fences[1].seal_older()
    output, mirror = attempts.begin(1, fences[1])
    assert steps(output) == [3]
    assert attempts.folders() == [f"attempt-1/{fences[1].generation}"]
    train(output, mirror, steps=6)
    fences[1].begin_commit()
    fences[2].seal_older()
    assert steps(attempts.begin(1, fences[2])[0]) == [3, 6]
    both = [f"attempt-1/{fence.generation}" for fence in fences[1:3]]
    assert attempts.folders() == both
    attempts.begin(1, fences[0], machine="asleep")  # the first slept before that, and wakes
    assert attempts.folders() == both
