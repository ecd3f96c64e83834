"""What a cluster says of the jobs that this process follows: one list of each kind for all of them, however many they are.

A run worker follows one job, a load test hundreds: either way a look costs four requests, two while everything waits in the queue. A watch
makes the next look come sooner and never decides anything (spec §1.8).
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event, Lock, Thread

from marin_assets.launch.kubernetes.client import JOBS, JOBSETS, PODS, WORKLOADS, ApiError, Cluster, ExpiredError, Json
from marin_assets.launch.kubernetes.names import JOB_UID_LABEL, JOBSET_NAME_LABEL, KEY_LABEL, MANAGED_LABEL, JobName
from marin_core.errors import MarinError

BUSY_SECONDS = 2.0
"""Between two looks while something is changing."""

STEADY_SECONDS = 10.0
"""Between two looks at jobs that run, or wait in the queue."""

IDLE_SECONDS = 60.0
"""Between two looks at jobs that have waited for an hour."""

SOONEST_SECONDS = 1.0
"""Between any two looks, whatever happens: so a process never makes more than 240 requests a minute."""

JITTER = 0.2
"""Share by which intervals vary, so that a thousand processes don't ask at once."""

LONGEST_BACK_OFF_SECONDS = 60.0

NAMED = 50
"""Jobs that a list asks for by name; of more, it asks for everything of ours, since a URL must stay short."""

FORGOTTEN_SECONDS = 600.0
"""A job that nobody has asked about for this long is followed no more."""


@dataclass(frozen=True)
class Objects:
    """What the cluster has of one job."""

    jobset: Json | None = None
    workload: Json | None = None
    jobs: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()


@dataclass(frozen=True)
class Look:
    """The newest look at one job.

    Attributes:
        number: of the look; None before the first.
        stale_since: since when the cluster hasn't answered, in seconds since 1970.
    """

    objects: Objects
    number: int | None
    stale_since: float | None
    silence: str = ""


@dataclass
class _Followed:
    key: str
    seconds: float = BUSY_SECONDS
    asked_at: float = 0.0


@dataclass
class BackOff:
    """Waiting after failures: 1 s, doubled up to a minute, random, and at least as long as the server asks for."""

    failures: int = 0

    def fail(self, retry_after_seconds: float | None = None) -> float:
        """Count a failure; seconds to wait."""
        self.failures += 1
        wait = min(2.0 ** min(self.failures - 1, 30), LONGEST_BACK_OFF_SECONDS) * random.uniform(0.5, 1.0)  # noqa: S311
        return max(wait, retry_after_seconds or 0.0)

    def clear(self) -> None:
        self.failures = 0


@dataclass
class _State:
    """What lists have said, guarded by the view's lock."""

    objects: Mapping[str, Objects] = field(default_factory=dict)
    number: int = 0
    due: float = 0.0
    stale_since: float | None = None
    silence: str = ""
    version: str | None = None


class View:
    """The jobs of one namespace that this process follows.

    Args:
        cluster_name: the profile's name, which objects of ours carry as a label.
        kueue: whether there are Workloads.
        clock: seconds that only go forwards; `wall`: seconds since 1970.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        cluster_name: str,
        *,
        kueue: bool = True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._cluster_name = cluster_name
        self._kueue = kueue
        self._clock = clock
        self._wall = wall
        self._followed: dict[str, _Followed] = {}
        self._state = _State()
        self._back_off = BackOff()
        self._soonest = 0.0
        self._lock = Lock()
        self._asking = Lock()
        self._nudged = Event()

    def look(self, name: str) -> Look:
        """The newest look at a job, which is followed from here on; a new look if one is due. Never waits for another thread's."""
        now = self._clock()
        with self._lock:
            if name not in self._followed:
                self._followed[name] = _Followed(JobName.parse(name).key)
                self.nudge()
            self._followed[name].asked_at = now
            due = (now >= self._state.due or self._nudged.is_set()) and now >= self._soonest
        if due and self._asking.acquire(blocking=False):
            try:
                self._ask(now)
            finally:
                self._asking.release()
        with self._lock:
            state = self._state
            known = state.number > 0 and name in state.objects
            return Look(state.objects.get(name, Objects()), state.number if known else None, state.stale_since, state.silence)

    def pace(self, name: str, seconds: float) -> None:
        """How soon this job wants the next look; the most eager one is heeded."""
        with self._lock:
            if name in self._followed:
                self._followed[name].seconds = seconds

    def forget(self, name: str) -> None:
        """Follow a job no more."""
        with self._lock:
            self._followed.pop(name, None)

    def nudge(self) -> None:
        """Something has happened: look at once."""
        self._nudged.set()

    def position(self) -> tuple[str, str | None]:
        """Where a watch begins: selector and version of the newest list; no version where there was none."""
        with self._lock:
            return self._selectors(self._followed)[0], self._state.version

    def expire(self, version: str) -> None:
        """Drop a version that the server doesn't know any more."""
        with self._lock:
            if self._state.version == version:
                self._state.version = None
        self.nudge()

    def _ask(self, now: float) -> None:
        with self._lock:
            self._followed = {name: each for name, each in self._followed.items() if now - each.asked_at < FORGOTTEN_SECONDS}
            followed = dict(self._followed)
        self._nudged.clear()
        try:
            objects, version = self._lists(followed)
        except ApiError as error:
            with self._lock:
                self._soonest = self._clock() + self._back_off.fail(error.retry_after_seconds)
                self._state.stale_since = self._state.stale_since or self._wall()
                self._state.silence = error.message
            return
        with self._lock:
            self._back_off.clear()
            pace = min((each.seconds for each in self._followed.values()), default=STEADY_SECONDS)
            now = self._clock()
            self._soonest = now + SOONEST_SECONDS
            due = now + pace * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
            self._state = _State(objects, self._state.number + 1, due, version=version)

    def _lists(self, followed: Mapping[str, _Followed]) -> tuple[dict[str, Objects], str]:
        """What the cluster has of each followed job, and the version of the list of JobSets."""
        ours, named = self._selectors(followed)
        answer = self._cluster.list(JOBSETS.path(self._namespace), ours)
        jobsets = {_name(each): each for each in answer["items"] if _name(each) in followed}
        workloads = self._workloads(jobsets.values()) if self._kueue and jobsets else {}
        jobs: Mapping[str, Sequence[Json]] = {}
        pods: Mapping[str, Sequence[Json]] = {}
        if any(_may_have_pods(each, workloads.get(_uid(each))) for each in jobsets.values()):
            jobs, pods = (_by_jobset(self._cluster.list(kind.path(self._namespace), named)["items"]) for kind in (JOBS, PODS))
        found = {
            name: Objects(jobset, workloads.get(_uid(jobset)) if jobset else None, tuple(jobs.get(name, ())), tuple(pods.get(name, ())))
            for name in followed
            for jobset in (jobsets.get(name),)
        }
        return found, str(answer["metadata"]["resourceVersion"])

    def _workloads(self, jobsets: Iterable[Json]) -> dict[str, Json]:
        """Workloads by the uid of the JobSet that owns each; their names can't be told beforehand."""
        uids = [_uid(each) for each in jobsets]
        selector = f"{JOB_UID_LABEL} in ({','.join(sorted(uids))})" if len(uids) <= NAMED else None
        listed = self._cluster.list(WORKLOADS.path(self._namespace), selector)["items"]
        return {owner["uid"]: each for each in listed for owner in each["metadata"].get("ownerReferences", ())}

    def _selectors(self, followed: Mapping[str, _Followed]) -> tuple[str, str]:
        """Of JobSets; and of Jobs and pods, which the JobSet controller labels."""
        ours = f"{MANAGED_LABEL}={self._cluster_name}"
        if len(followed) > NAMED:
            return ours, JOBSET_NAME_LABEL
        keys = ",".join(sorted({each.key for each in followed.values()}))
        return f"{ours},{KEY_LABEL} in ({keys})", f"{JOBSET_NAME_LABEL} in ({','.join(sorted(followed))})"


class Watcher:
    """Nudges a view when a JobSet of its jobs changes. A thread that nothing waits for; whatever fails, looks go on at their own pace."""

    def __init__(self, cluster: Cluster, namespace: str, view: View) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._view = view
        self._thread: Thread | None = None
        self._lock = Lock()

    def start(self) -> None:
        """Begin, unless it has begun."""
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._run, name=f"watch of {self._namespace}", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        back_off = BackOff()
        while True:
            seconds = BUSY_SECONDS
            selector, version = self._view.position()
            if version is not None:
                try:
                    self.watch_once(selector, version)
                    back_off.clear()
                except MarinError:  # a server that is away, or the right to watch
                    seconds = back_off.fail()
            time.sleep(seconds)

    def watch_once(self, selector: str, version: str) -> None:
        """Watch from a version until the connection ends or the followed jobs are others by now."""
        try:
            for _ in self._cluster.watch(JOBSETS.path(self._namespace), selector, version):
                self._view.nudge()
                if self._view.position()[0] != selector:
                    return
        except ExpiredError:
            self._view.expire(version)


def _name(thing: Json) -> str:
    return str(thing["metadata"]["name"])


def _uid(thing: Json) -> str:
    return str(thing["metadata"]["uid"])


def _may_have_pods(jobset: Json, workload: Json | None) -> bool:
    """A suspended JobSet has none, but for a moment after it was suspended."""
    if not jobset["spec"].get("suspend", False):
        return True
    conditions = (workload or {}).get("status", {}).get("conditions", ())
    return any(each["type"] in ("Evicted", "QuotaReserved") and each["status"] == "True" for each in conditions)


def _by_jobset(items: Iterable[Json]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = defaultdict(list)
    for item in items:
        found[item["metadata"]["labels"][JOBSET_NAME_LABEL]].append(item)
    return found
