"""Publishers as processes that race and are killed. `python -m tests.mix.drill NAME JSON` runs one drill and prints what it saw as JSON.

A process of its own, with one thread, so that it may fork as it likes.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from marin_core.errors import ConfigError, InfrastructureError, MarinError
from marin_core.mix.commit import CodeState, Json
from marin_core.mix.page import page_seq
from marin_core.mix.place import PAGE_FILE, Place, Stamped, open_place
from marin_core.mix.publish import Publisher
from marin_core.mix.read import MixReader, verify
from tests.mix.chains import START, Wrapped, content, domain, hour

PROJECT = Path(__file__).resolve().parents[2]
LATE = START + timedelta(days=3650)


def run(name: str, environment: dict[str, str] | None = None, timeout_seconds: float = 300, **options: Any) -> Any:
    """Run a drill and return what it saw."""
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:tests.mix.drill", "-m", "tests.mix.drill", name, json.dumps(options)],
        cwd=PROJECT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def fork(work: Callable[[], None]) -> int:
    """Run something in a child process; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:  # the parent sees the exit code, the log the error
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


# Many at once ----------------------------------------------------------------------------------------------------------


class Counters:
    """A world of counters, one a publisher, that only grow: file `i` of a folder."""

    def __init__(self, folder: Path, publishers: int) -> None:
        self.folder = folder
        self.publishers = publishers

    def write(self, publisher: int, value: int) -> None:
        temporary = self.folder / f".{publisher}"
        temporary.write_text(str(value))
        temporary.replace(self.folder / str(publisher))

    def content(self) -> Json:
        values = {f"p{index:02d}": int((self.folder / str(index)).read_text()) for index in range(self.publishers)}
        weights = {name: "1" if name == "p00" else "0" for name in values}
        domains = {name: domain(value) for name, value in values.items()}
        return content(phases=[{"start": "0", "weights": weights}], domains=domains)


def storm(*, url: str, folder: str, publishers: int, attempts: int, pause_seconds: float) -> list[Json]:
    """Each publisher counts up its own domain and publishes what it sees of all, as often as told; one line for every attempt."""
    counters = Counters(Path(folder), publishers)
    for index in range(publishers):
        counters.write(index, 1)
    pids = [
        fork(lambda index=index: _keep_publishing(index, url, counters, attempts, pause_seconds))  # type: ignore[misc]
        for index in range(publishers)
    ]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * publishers, codes
    return [json.loads(line) for index in range(publishers) for line in (Path(folder) / f"results-{index}").read_text().splitlines()]


def _keep_publishing(index: int, url: str, counters: Counters, attempts: int, pause_seconds: float) -> None:
    chance = random.Random(index)

    def pause(seconds: float) -> None:
        time.sleep(seconds * pause_seconds)

    publisher = Publisher(open_place(url), clock=lambda: LATE, pause=pause, chance=chance)
    with (counters.folder / f"results-{index}").open("w") as results:
        for value in range(2, attempts + 2):
            counters.write(index, value)
            try:
                found = publisher.publish(counters.content, hour=hour(0), author=f"publisher {index}", message="first", code=CodeState())
            except InfrastructureError as error:
                result: Json = {"outcome": "try again", "error": error.message}
            else:
                result = {"outcome": found.outcome, "id": found.commit.id if found.commit else None, "tries": found.tries}
            results.write(json.dumps({"publisher": index, "value": value, **result}) + "\n")


# Killed ----------------------------------------------------------------------------------------------------------------


class Dying(Wrapped):
    """Kills its process with signal 9 before or after the operation of a number."""

    def __init__(self, place: Place, number: int, *, after: bool) -> None:
        super().__init__(place)
        self._left = number
        self._after = after

    def _do[Result](self, operation: Callable[[], Result]) -> Result:
        self._left -= 1
        if self._left == 0 and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = operation()
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def read(self, path: str) -> bytes | None:
        return self._do(lambda: self.inner.read(path))

    def read_stamped(self, path: str) -> Stamped | None:
        return self._do(lambda: self.inner.read_stamped(path))

    def create(self, path: str, data: bytes) -> bool:
        return self._do(lambda: self.inner.create(path, data))

    def replace(self, path: str, data: bytes) -> None:
        self._do(lambda: self.inner.replace(path, data))

    def swap(self, path: str, data: bytes, expected: str | None) -> bool:
        return self._do(lambda: self.inner.swap(path, data, expected))


def _publish(place: Place, number: int, tokens: int) -> None:
    Publisher(place, clock=lambda: LATE).publish(
        lambda: content(tokens=tokens), hour=hour(number), author="curator", message="as wanted", code=CodeState()
    )


def steps(*, url: str) -> list[Json]:
    """Kill publishers before and after each of their operations on a small mix, and repair it; one line for every death."""
    seen = []
    for after in (False, True):
        for operation in count(1):
            mix = f"{url}/{'after' if after else 'before'}-{operation}"
            for number in range(3):
                _publish(open_place(mix), number, number)

            def die(mix: str = mix, operation: int = operation, after: bool = after) -> None:
                _publish(Dying(open_place(mix), operation, after=after), 3, 3)

            code = os.waitstatus_to_exitcode(os.waitpid(fork(die), 0)[1])
            seen.append({"after": after, "operation": operation, "code": code, **looked(open_place(mix), 3)})
            if code == 0:
                break
    return seen


def looked(place: Place, number: int) -> Json:
    """What a reader finds in a mix, and what the next publisher makes of it."""
    before = _state(place)
    _publish(place, number, number)
    reader = MixReader(place)
    head = reader.newest()
    page = place.read(PAGE_FILE)
    verdict = verify(MixReader(place))
    return {
        "before": before,
        "after_repair": head.seq,
        "published": head.content == content(tokens=number),
        "page_is_current": page is not None and page_seq(page) == head.seq,
        "problems": list(verdict.problems),
        "unreachable": len(verdict.unreachable),
    }


def _state(place: Place) -> str:
    try:
        return f"commit {MixReader(place).newest().seq}"
    except ConfigError:
        return "nothing"
    except MarinError as error:
        return f"torn: {error.message}"


def instants(*, url: str, kills: int, seed: int) -> Json:
    """Kill publishers that publish without a pause at random instants, while a reader polls all along."""
    chance = random.Random(seed)
    ready, stop = os.pipe(), os.pipe()
    os.set_blocking(stop[0], False)
    reader = fork(lambda: _poll(url, ready[1], stop[0]))
    tokens = 0
    place = open_place(url)
    _publish(place, 0, 1)
    assert os.read(ready[0], 1) == b"."
    lengths, seconds = [], 0.0
    for number in range(kills):
        start = tokens = tokens + 1_000

        def work(times: int, start: int = start) -> None:
            mine = open_place(url)
            for extra in range(times):
                _publish(mine, 1, start + extra)

        if number % 10 == 0:  # what a process and its first publication take now, on a machine that others use too
            began = time.monotonic()
            os.waitpid(fork(lambda: work(1)), 0)
            seconds = time.monotonic() - began
        pid = fork(lambda: work(999))
        time.sleep(chance.uniform(0, 3 * seconds))  # the instant; nothing waits for it
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        lengths.append(MixReader(place).newest().seq)
    os.write(stop[1], b".")
    _, status = os.waitpid(reader, 0)
    verdict = verify(MixReader(place))
    return {
        "reader": os.waitstatus_to_exitcode(status),
        "problems": list(verdict.problems),
        "commits": verdict.commits,
        "unreachable": len(verdict.unreachable),
        "grew": lengths == sorted(lengths),
    }


def _poll(url: str, ready: int, stop: int) -> None:
    """Read HEAD and its commit over and over; a torn state or a HEAD that goes back ends it with an error."""
    place = open_place(url)
    last, told = -1, False
    while True:
        try:
            seq = MixReader(place).newest().seq
        except ConfigError:
            assert last < 0, "HEAD went away"
            continue
        assert seq >= last, f"HEAD went back from {last} to {seq}"
        page = place.read(PAGE_FILE)
        assert page is None or page.endswith(b"</html>\n"), "a torn page"
        last = seq
        if not told:
            os.write(ready, b".")
            told = True
        try:
            os.read(stop, 1)
        except BlockingIOError:
            continue
        return


DRILLS: dict[str, Callable[..., Any]] = {"storm": storm, "steps": steps, "instants": instants}

if __name__ == "__main__":
    print(json.dumps(DRILLS[sys.argv[1]](**json.loads(sys.argv[2]))))
