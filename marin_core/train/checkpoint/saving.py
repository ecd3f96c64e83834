"""A save in progress: it runs beside the training, and ends by a deadline whatever the store does."""

import concurrent.futures.thread
import threading
import time
from collections.abc import Callable

from marin_core.errors import InfrastructureError, MarinError
from marin_core.train.checkpoint.mirror import THREADS


class SaveInProgress:
    """Two pieces of work on a thread of their own: copy the state, then write and commit it.

    Everything that talks to the store happens there, so that a store which never answers costs no more than the deadline. The thread
    and all that it starts are daemons: they die with the process.

    Args:
        what: names step, store and bytes in errors, as `checkpoint of step 6 (1.2 GB) in …`.
        copy: returns `write` once the state's memory may be reused.
    """

    def __init__(self, what: str, deadline_seconds: float, copy: Callable[[], Callable[[], None]]) -> None:
        self._what = what
        self._deadline_seconds = deadline_seconds
        self._ends = time.monotonic() + deadline_seconds
        self._copied = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(copy,), name=f"saving the {what}", daemon=True)
        self._thread.start()

    def wait_until_copied(self) -> None:
        """Return once the state's memory may be reused.

        Raises:
            InfrastructureError: copying failed, or isn't done by the deadline.
        """
        self._copied.wait(self._seconds_left())
        self._check(self._copied.is_set(), "begin")

    def wait(self) -> None:
        """Return once the checkpoint is committed.

        Raises:
            InfrastructureError: it couldn't be, or isn't by the deadline.
        """
        # The thread itself: at the end of the process one that still lets go of arrays would abort it.
        self._thread.join(self._seconds_left())
        self._check(not self._thread.is_alive(), "finish")

    def _run(self, copy: Callable[[], Callable[[], None]]) -> None:
        try:
            write = copy()
            self._copied.set()
            write()
        except BaseException as error:  # whatever it is, the training's thread must hear of it
            self._error = error
        finally:
            self._copied.set()

    def _seconds_left(self) -> float:
        return max(self._ends - time.monotonic(), 0.0)

    def _check(self, done: bool, verb: str) -> None:
        if not done:
            _let_go_of_pools()
            raise InfrastructureError(
                f"The {self._what} didn't {verb} within {self._deadline_seconds:.0f} s",
                advice="See whether the store answers and how fast; if it is merely slow, raise deadline_seconds.",
            )
        if self._error is not None:
            raise InfrastructureError(
                f"The {self._what} can't be saved: {describe(self._error)}",
                advice="Make room or mend the store and start the run again; it continues from the checkpoint before.",
            ) from self._error


def describe(error: BaseException) -> str:
    """An error in one line of at most 600 characters; of one that libraries have wrapped in long ones of their own, the first cause.

    TensorStore names a file twice before it says what is wrong with it.
    """
    while error.__cause__ is not None and not isinstance(error, MarinError):
        error = error.__cause__
    text = error.message if isinstance(error, MarinError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0][:600]


def _let_go_of_pools() -> None:
    """Don't wait at the end of the process for threads of pools.

    Orbax makes calls of the file system in asyncio's default pool, and the run is sent to a bucket by one of our own. Python joins the
    threads of pools when it exits, daemons or not; one that hangs in such a call would hold the process for ever. There is no public way
    to say so.
    """
    for thread in list(concurrent.futures.thread._threads_queues):
        if thread.name.startswith(("asyncio_", f"{THREADS}_")):
            concurrent.futures.thread._threads_queues.pop(thread, None)  # type: ignore[attr-defined]
