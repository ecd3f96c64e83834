"""What each answer of an API server means, by a server that gives it."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from marin_assets.launch.kubernetes import client
from marin_assets.launch.kubernetes.client import (
    FORBIDDEN_SECONDS,
    JOBSETS,
    PENDING_WORKLOADS,
    PODS,
    AlreadyThereError,
    ApiError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    NotFoundError,
    RefusedError,
    judge,
    quantity,
)
from marin_core.errors import ConfigError, InfrastructureError
from tests.launch.kubernetes.scripted_api import Fault, Json, ScriptedApi

PLACE = JOBSETS.path("team-a")


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with ScriptedApi() as api:
        yield api


def jobset(name: str, **labels: str) -> Json:
    return {"kind": "JobSet", "metadata": {"name": name, "labels": labels}, "spec": {}}


def test_paths_are_those_of_the_api() -> None:
    assert PLACE == "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team-a/jobsets"
    assert PODS.path("team-a", "m-a-0", "log") == "/api/v1/namespaces/team-a/pods/m-a-0/log"
    asked = PENDING_WORKLOADS.path(name="cq-a", subresource="pendingworkloads")
    assert asked == "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/cq-a/pendingworkloads"


@pytest.mark.parametrize(
    ("status", "reason", "message", "kind"),
    [
        (404, "NotFound", "not found", NotFoundError),
        (409, "AlreadyExists", "object is being deleted: jobsets already exists", AlreadyThereError),
        (409, "Conflict", "the UID in the precondition does not match", ConflictError),
        (410, "Expired", "too old resource version: 1 (20)", ExpiredError),
        (504, "Timeout", "Too large resource version: 90, current: 20", ExpiredError),
        (504, "Timeout", "the server was unable to answer", ApiError),
        (429, "TooManyRequests", "slow down", ApiError),
        (500, "InternalError", 'failed calling webhook "mjob.kb.io"', ApiError),
        (503, "ServiceUnavailable", "starting", ApiError),
        (403, "Forbidden", 'pods "x" is forbidden: exceeded quota: team', ApiError),
        (403, "Forbidden", 'User "x" cannot create resource "jobsets"', ApiError),
        (403, "Forbidden", 'admission webhook "vjobset.kb.io" denied the request: bad name', RefusedError),
        (422, "Invalid", "spec.replicatedJobs: field is immutable", RefusedError),
        (400, "BadRequest", "unknown field", RefusedError),
    ],
)
def test_an_answer_is_a_failure_of_one_class(api: ScriptedApi, status: int, reason: str, message: str, kind: type[Exception]) -> None:
    api.fail(Fault("POST", "jobsets", status, reason, message))
    with pytest.raises(kind) as raised:
        api.cluster().create(PLACE, jobset("a"))
    assert type(raised.value) is kind
    assert message in str(raised.value)
    assert isinstance(raised.value, ConfigError if kind is RefusedError else InfrastructureError)


def test_a_right_is_missing_once_it_has_been_denied_for_a_while_and_not_before(api: ScriptedApi) -> None:
    now = 0.0
    api.clock = lambda: now
    cluster = api.cluster()
    denied = Fault("POST", "jobsets", 403, "Forbidden", 'User "x" cannot create resource "jobsets"')

    def kind_after(seconds: float) -> type[Exception] | None:
        nonlocal now
        now += seconds
        api.fail(replace(denied))
        try:
            cluster.create(PLACE, jobset(f"a-{now:.0f}"))
        except (ApiError, RefusedError) as error:
            return type(error)
        return None

    assert [kind_after(FORBIDDEN_SECONDS / 2) for _ in range(4)] == [ApiError, ApiError, ForbiddenError, ForbiddenError]
    cluster.create(PLACE, jobset("it-has-the-right"))
    assert kind_after(1) is ApiError
    assert kind_after(10 * FORBIDDEN_SECONDS) is ApiError  # nobody asked between the two


def test_a_proxy_that_answers_with_a_page_is_quoted_in_part() -> None:
    error = judge("GET /x", 502, b"<html>" + b"x" * 10_000, None)
    assert isinstance(error, ApiError)
    assert len(error.message) < 600


def test_the_server_says_how_long_to_wait(api: ScriptedApi) -> None:
    api.fail(Fault("GET", "jobsets", 429, headers={"Retry-After": "7"}))
    with pytest.raises(ApiError) as raised:
        api.cluster().list(PLACE)
    assert raised.value.retry_after_seconds == 7
    api.fail(Fault("GET", "jobsets", 429, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}))
    with pytest.raises(ApiError) as raised:
        api.cluster().list(PLACE)
    assert raised.value.retry_after_seconds is None


def test_a_cut_connection_and_a_dead_server_are_no_answer(api: ScriptedApi) -> None:
    cluster = api.cluster()
    api.fail(Fault("GET", "jobsets"))
    with pytest.raises(ApiError) as raised:
        cluster.list(PLACE)
    assert raised.value.status is None
    api.stop()
    with pytest.raises(ApiError):
        cluster.list(PLACE)
    api.start()
    assert cluster.list(PLACE)["items"] == []


def test_a_half_open_connection_is_given_up(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "READ_SECONDS", 0.3)
    gate = threading.Event()
    monkeypatch.setattr(api, "answer", lambda *asked: (gate.wait(30), (200, {}))[1])
    with pytest.raises(ApiError) as raised:
        api.cluster().list(PLACE)
    gate.set()
    assert "Timeout" in raised.value.message


def test_credentials_are_loaded_once_more_when_they_are_not_taken(api: ScriptedApi) -> None:
    api.tokens = {"second"}
    assert api.cluster(["first", "second"]).list(PLACE)["items"] == []
    assert api.requests["GET jobsets"] == 2
    with pytest.raises(ApiError) as raised:  # the identity provider may come back
        api.cluster(["first", "third"]).list(PLACE)
    assert raised.value.status == 401
    assert api.requests["GET jobsets"] == 4


def test_lists_come_from_memory_and_single_objects_do_not(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []
    answer = api.answer

    def noted(method: str, path: str, query: dict[str, str], body: Json | None) -> tuple[int, Json]:
        asked.append(query)
        return answer(method, path, query, body)

    monkeypatch.setattr(api, "answer", noted)
    cluster = api.cluster()
    cluster.create(PLACE, jobset("a", team="one"))
    cluster.create(PLACE, jobset("b", team="two"))
    cluster.get(f"{PLACE}/a")
    assert [each["metadata"]["name"] for each in cluster.list(PLACE, "team in (two,three)")["items"]] == ["b"]
    assert asked == [{}, {}, {}, {"resourceVersion": "0", "labelSelector": "team in (two,three)"}]


def test_a_list_leaves_out_who_has_set_which_field(api: ScriptedApi) -> None:
    thing = jobset("a")
    thing["metadata"]["managedFields"] = [{"manager": "kueue", "fieldsV1": {"f:spec": {}}}]
    api.put(f"{PLACE}/a", thing)
    (listed,) = api.cluster().list(PLACE)["items"]
    assert listed["metadata"]["name"] == "a"
    assert "managedFields" not in listed["metadata"]


def test_a_deletion_is_of_one_object_and_all_that_it_owns(api: ScriptedApi) -> None:
    cluster = api.cluster()
    uid = cluster.create(PLACE, jobset("a"))["metadata"]["uid"]
    with pytest.raises(ConflictError):
        cluster.delete(f"{PLACE}/a", "another's")
    cluster.delete(f"{PLACE}/a", uid)
    with pytest.raises(NotFoundError):
        cluster.delete(f"{PLACE}/a", uid)


def test_a_patch_is_merged(api: ScriptedApi) -> None:
    cluster = api.cluster()
    cluster.create(PLACE, jobset("a", team="one"))
    cluster.patch(f"{PLACE}/a", {"spec": {"active": False}})
    assert api.of("jobsets")["a"]["spec"] == {"active": False}
    assert api.of("jobsets")["a"]["metadata"]["labels"] == {"team": "one"}


def test_a_watch_gives_versions_until_it_is_cut(api: ScriptedApi) -> None:
    cluster = api.cluster()
    begin = str(cluster.list(PLACE)["metadata"]["resourceVersion"])
    versions = [cluster.create(PLACE, jobset(name, team="one"))["metadata"]["resourceVersion"] for name in ("a", "b")]
    cluster.create(PLACE, jobset("c", team="two"))
    seen = cluster.watch(PLACE, "team=one", begin)
    assert [next(seen), next(seen)] == versions
    api.fail(Fault("EVENT", "jobsets"))
    cluster.create(PLACE, jobset("d", team="one"))
    assert list(seen) == []  # half an event came


def test_a_watch_of_a_version_that_is_forgotten_says_so(api: ScriptedApi) -> None:
    cluster = api.cluster()
    begin = str(cluster.list(PLACE)["metadata"]["resourceVersion"])
    api.forget_events()
    with pytest.raises(ExpiredError):
        next(cluster.watch(PLACE, None, begin))
    api.fail(Fault("GET", "watch=true", 504, "Timeout", "Too large resource version: 900"))
    with pytest.raises(ExpiredError):
        next(cluster.watch(PLACE, None, "900"))


def test_a_server_that_stops_ends_a_watch_quietly(api: ScriptedApi) -> None:
    cluster = api.cluster()
    begin = str(cluster.list(PLACE)["metadata"]["resourceVersion"])
    cluster.create(PLACE, jobset("a"))
    seen = cluster.watch(PLACE, None, begin)
    next(seen)
    api.stop()
    assert list(seen) == []


def test_a_kubeconfig_that_is_not_there_is_a_matter_of_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.config import kube_config

    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", "/nowhere/config")
    with pytest.raises(RefusedError, match="credentials"):
        client.Cluster.of_context("gb200").list(PLACE)


def test_quantities_are_numbers() -> None:
    assert [float(quantity(text)) for text in ("800Gi", "500m", "4", "1M")] == [800 * 2**30, 0.5, 4, 1_000_000]


def test_a_status_is_read_whatever_its_form() -> None:
    error = judge("GET /x", 404, json.dumps([1]), None)
    assert isinstance(error, NotFoundError)
