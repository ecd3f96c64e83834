"""The sensor of a deployment that launches on a cluster: it sweeps up behind the jobs. Off until somebody switches it on."""

import dagster as dg

from marin_assets.launch.kubernetes import open_connection
from marin_assets.launch.kubernetes.janitor import SWEEP_SECONDS, Janitor
from marin_assets.place import LOCAL

FINDINGS_SHOWN = 5


def cluster_sensors(launcher: str) -> list[dg.SensorDefinition]:
    """The janitor of the deployment's cluster, if it has one.

    Args:
        launcher: see `Lab.launcher`.
    """
    if launcher == LOCAL:
        return []

    @dg.sensor(
        name="sweep_cluster",
        minimum_interval_seconds=SWEEP_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Delete JobSets that have nothing left to do, and tell of pods that hold up the queue.",
    )
    def sweep(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        connection = open_connection(launcher)
        findings = Janitor(connection.cluster, connection.profile).sweep()
        for finding in findings:
            (context.log.warning if finding.done == "told" else context.log.info)(f"{finding.name}: {finding.done}: {finding.message}")
        shown = "; ".join(f"{each.name}: {each.done}: {each.message}" for each in findings[:FINDINGS_SHOWN])
        return dg.SensorResult(skip_reason=shown or "there was nothing to sweep up")

    return [sweep]
