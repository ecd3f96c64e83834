"""A published mix in Dagster: an asset with a partition for each hour, a schedule that is its clock, a sensor that doesn't wait for it.

Both decide by what would be published now and ask for a run only if that is news. Both are off until somebody switches them on.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from marin_assets.automation.desk import Clock, Desk, News, utc_now
from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_assets.metadata import DATA_VERSION_DIGITS, TABLE_ROWS, table
from marin_core.artifact import ArtifactGraph
from marin_core.errors import ConfigError, MarinError
from marin_core.experiment.publishing import PublishedMix
from marin_core.mix.commit import Commit, floor_hour, hour_text
from marin_core.mix.place import PAGE_FILE, open_place
from marin_core.mix.publish import Published
from marin_core.mix.read import MixReader
from marin_core.report import Scalar

KEY_FORMAT = "%Y-%m-%d-%H:%M"
MINUTE = 5
"""Of the hour at which the schedule ticks; most of what runs hourly runs at 0."""

CATCH_UP_HOURS = 24
"""Hours that one tick may ask for, in one run."""

CHECK_SECONDS = 120
"""Between two looks of the sensor."""

LANE = {"marin/lane": "publish"}


def mix_key(mix: PublishedMix) -> dg.AssetKey:
    """`published/web` is the asset `["published", "web"]`: it has no version."""
    return dg.AssetKey(mix.name.split("/"))


def mix_hours(mix: PublishedMix) -> dg.HourlyPartitionsDefinition:
    """Hours from the mix's first on, the running one included: a commit is valid from its hour on, so it is published within it."""
    return dg.HourlyPartitionsDefinition(start_date=mix.start, timezone="UTC", fmt=KEY_FORMAT, end_offset=1)


def partition_key(hour: datetime) -> str:
    """The key of an hour."""
    return f"{hour.astimezone(UTC):{KEY_FORMAT}}"


def mix_asset(mix: PublishedMix, graph: ArtifactGraph, experiments: Sequence[str] = (), clock: Clock = utc_now) -> dg.AssetsDefinition:
    """The asset; materializing hours publishes what is mixed now for the newest of them, and tells what was valid in the others."""
    key = mix_key(mix)
    fingerprint = graph.fingerprint(graph[mix.mixture.id])

    @dg.asset(
        key=key,
        deps=[asset_key(mix.mixture.id)],
        partitions_def=mix_hours(mix),
        backfill_policy=dg.BackfillPolicy.single_run(),
        description=mix.description,
        group_name=mix.name.split("/")[0],
        kinds={"json", "html"},
        owners=[mix.owner],
        tags={f"experiment/{name}": "true" for name in experiments},
        metadata={"mixture": str(mix.mixture.id), "fingerprint": fingerprint, "to": mix.to or "below the store's prefix"},
        op_tags=LANE,
    )
    def published(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult[Any]:
        desk = Desk(mix, lab.store(), fingerprint, clock)
        hours = sorted(datetime.strptime(each, KEY_FORMAT).replace(tzinfo=UTC) for each in context.partition_keys)
        try:
            found = desk.publish(hours[-1])
            earlier = _valid(desk, found, hours[:-1])
        except MarinError as error:
            raise dg.Failure(
                description=str(error), metadata={"exit_code": int(error.exit_code), "mix": mix.name}, allow_retries=False
            ) from error
        context.log.info(_said(mix, found))
        return dg.MaterializeResult(
            data_version=dg.DataVersion(found.commit.content_digest[:DATA_VERSION_DIGITS]) if found.commit else None,
            metadata=mix_metadata(desk.url, found, earlier),
        )

    return published


def _valid(desk: Desk, found: Published, hours: Sequence[datetime]) -> list[tuple[datetime, Commit | None]]:
    """What was valid in hours before the published one: history is never inserted into."""
    if not hours or found.commit is None:
        return [(hour, None) for hour in hours]
    reader = MixReader(open_place(desk.url))
    return [(hour, reader.valid_at(found.commit, hour)) for hour in hours]


def _said(mix: PublishedMix, found: Published) -> str:
    if found.commit is None:
        return f"{mix.name}: nothing was published by then"
    return f"{mix.name}: {found.outcome}, commit {found.commit.seq} of {found.commit.hour}, {found.commit.id}"


def mix_metadata(url: str, found: Published, earlier: Sequence[tuple[datetime, Commit | None]] = ()) -> dict[str, Any]:
    """What the asset's page shows of a publication."""
    shown: dict[str, Any] = {
        "outcome": found.outcome,
        "unchanged": found.outcome == "unchanged",
        "url": dg.MetadataValue.path(url),
        "page": dg.MetadataValue.path(f"{url}/{PAGE_FILE}") if found.page == "up to date" else dg.MetadataValue.text(found.page),
        "tries": found.tries,
    }
    commit = found.commit
    if commit is not None:
        shown |= {
            "seq": commit.seq,
            "id": commit.id,
            "hour": commit.hour,
            "author": dg.MetadataValue.text(commit.author),
            "message": dg.MetadataValue.text(commit.message),
            "content_digest": commit.content_digest,
            "tokens": sum(domain["tokens"] for domain in commit.content["domains"].values()),
            "domains": table(domain_rows(commit)[:TABLE_ROWS]),
        }
        if commit.diff:
            shown["diff"] = table([_row(path=each.path, old=each.old, new=each.new) for each in commit.diff[:TABLE_ROWS]])
    if earlier:
        shown["earlier_hours"] = table([_row(hour=hour_text(hour), seq=None if valid is None else valid.seq) for hour, valid in earlier])
    return shown


def domain_rows(commit: Commit) -> list[dict[str, Scalar]]:
    """A row for each domain: its weight in every phase, and what it consists of."""
    phases = commit.content["phases"]
    names = ["weight"] if len(phases) == 1 else [f"weight_from_{phase['start']}" for phase in phases]
    return [
        {"domain": name}
        | {column: phase["weights"].get(name, "0") for column, phase in zip(names, phases, strict=True)}
        | {field: domain[field] for field in ("tokens", "documents", "shards")}
        | {"missing_shards": len(domain["missing_shards"]), "epochs": domain.get("epochs_at_planned", "")}
        | {"license": domain["license"], "artifact": domain["artifact"]}
        for name, domain in sorted(commit.content["domains"].items())
    ]


def _row(**values: Any) -> dict[str, Scalar]:
    return {name: "" if value is None else value if isinstance(value, int | str) else str(value) for name, value in values.items()}


# Deciding --------------------------------------------------------------------------------------------------------------


def mix_automation(
    mix: PublishedMix, graph: ArtifactGraph, clock: Clock = utc_now
) -> tuple[Any, dg.ScheduleDefinition, dg.SensorDefinition]:
    """The job of a mix, its schedule and its sensor."""
    name = f"publish_{'_'.join(mix.name.removeprefix('published/').split('/'))}"
    fingerprint = graph.fingerprint(graph[mix.mixture.id])
    job = dg.define_asset_job(name, selection=[mix_key(mix)], tags=LANE, description=f"Publish {mix.name} for an hour.")

    @dg.schedule(
        name=f"{name}_hourly",
        job=job,
        cron_schedule=f"{MINUTE} * * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Publish {mix.name} every hour in which something changed.",
    )
    def hourly(context: dg.ScheduleEvaluationContext, lab: Lab) -> dg.RunRequest | dg.SkipReason:
        hour = floor_hour(context.scheduled_execution_time)
        news = _news(Desk(mix, lab.store(), fingerprint, clock))
        return news if isinstance(news, dg.SkipReason) else hourly_request(mix, news, hour)

    @dg.sensor(
        name=f"{name}_on_change",
        job=job,
        minimum_interval_seconds=CHECK_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Publish {mix.name} as soon as its weights or its caches have changed.",
    )
    def on_change(context: dg.SensorEvaluationContext, lab: Lab) -> dg.SensorResult | dg.SkipReason:
        news = _news(Desk(mix, lab.store(), fingerprint, clock))
        return news if isinstance(news, dg.SkipReason) else change_request(mix, news, floor_hour(clock()), context.cursor)

    return job, hourly, on_change


def _news(desk: Desk) -> News | dg.SkipReason:
    """What there is to publish, or why that can't be: an unfinished cache is a reason to wait, not to fail every hour. Damage is none."""
    try:
        news = desk.news()
    except ConfigError as error:
        return dg.SkipReason(f"{desk.mix.name} can't be published: {error}")
    if not news.is_due and news.head is not None:
        return dg.SkipReason(f"nothing has changed since commit {news.head.seq} of {news.head.hour}")
    return news


def hourly_request(mix: PublishedMix, news: News, hour: datetime) -> dg.RunRequest | dg.SkipReason:
    """One run for an hour and for those missed before it, at most a day's."""
    if hour < mix.start:
        return dg.SkipReason(f"{mix.name} begins at {hour_text(mix.start)}")
    if news.head is not None and hour < news.head.time:
        return dg.SkipReason(f"commit {news.head.seq} is already of {news.head.hour}")
    first = hour
    if news.head is not None:
        first = min(hour, max(news.head.time + timedelta(hours=1), hour - timedelta(hours=CATCH_UP_HOURS - 1), mix.start))
    last = partition_key(hour)
    if first == hour:
        return dg.RunRequest(run_key=last, partition_key=last, tags=LANE)
    hours = {ASSET_PARTITION_RANGE_START_TAG: partition_key(first), ASSET_PARTITION_RANGE_END_TAG: last}
    return dg.RunRequest(run_key=last, tags=LANE | hours)


def change_request(mix: PublishedMix, news: News, hour: datetime, cursor: str | None) -> dg.SensorResult | dg.SkipReason:
    """One run for each content that is news; one that failed is left to the schedule."""
    if cursor == news.content_digest:
        return dg.SkipReason("this change was asked for already; if its run failed, the schedule asks again")
    if hour < mix.start or (news.head is not None and hour < news.head.time):
        return dg.SkipReason(f"the hour {hour_text(hour)} can't be published any more, or not yet")
    key = partition_key(hour)
    request = dg.RunRequest(run_key=f"{key} {news.content_digest[:DATA_VERSION_DIGITS]}", partition_key=key, tags=LANE)
    return dg.SensorResult(run_requests=[request], cursor=news.content_digest)
