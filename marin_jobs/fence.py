"""Fencing between the pods that one attempt has had: a pod that was given up may run on unseen, on a node that nobody reaches.

Each pod of process 0 is a generation. A new one seals all older ones before it touches anything; each builds in a folder of its own, so
that a sealed one can reach nobody's work, and it can't commit.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from marin_core.artifact.job_folder import JobFolder
from marin_core.errors import MarinError, SupersededError


class Fence:
    """A generation's own view of whether it still counts.

    Attributes:
        generation: of this pod.
        spared: older generations whose output must stay, since they may have committed it.
        lost: that this one doesn't count any more.
    """

    def __init__(self, folder: JobFolder, generation: str) -> None:
        self._folder = folder
        self.generation = generation
        self.spared: set[str] = set()
        self.lost: SupersededError | None = None
        self._may_have_committed = False

    def seal_older(self) -> None:
        """Begin: from here on no older generation can commit that hadn't begun to.

        Raises:
            SupersededError: a newer one has begun.
        """
        self.spared = self._folder.supersede(self.generation)

    def begin_commit(self) -> None:
        """The last step before the commit.

        Raises:
            SupersededError: a newer one has begun.
        """
        self._may_have_committed = True
        try:
            self._folder.begin_commit(self.generation)
        except SupersededError as error:
            self._may_have_committed = False
            self.lost = error
            raise

    @property
    def is_void(self) -> bool:
        """Whether what this generation made can't be committed by anybody."""
        return self.lost is not None and not self._may_have_committed

    def look(self) -> SupersededError | None:
        """Look whether a newer generation has begun."""
        if self.lost is None:
            try:
                self._folder.require_newest(self.generation)
            except SupersededError as error:
                self.lost = error
            except MarinError:  # a store that doesn't answer is no reason to stop: the commit decides
                pass
        return self.lost

    @contextmanager
    def watched(self, interval_seconds: float, on_lost: Callable[[SupersededError], None]) -> Iterator[None]:
        """Look from a thread whether a newer generation has begun, so that work which can't be used any more ends soon.

        Args:
            on_lost: called once, in the thread.
        """
        done = threading.Event()

        def watch() -> None:
            while not done.wait(interval_seconds):
                if (error := self.look()) is not None:
                    on_lost(error)
                    return

        thread = threading.Thread(target=watch, name="fence", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
