"""A cluster as its profile describes it: where jobs queue there, and what its pools of nodes are like. Pure.

One YAML a cluster, in `deploy/kubernetes/profiles`. Everything that differs between clusters is in it, so that nothing else has to.
"""

import re
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

from marin_core.config import Config
from marin_core.errors import ConfigError
from marin_core.hardware.devices import device_profile

CPU = "cpu"
"""Kind of the pools that have no accelerators."""

Image = Literal["cpu", "cuda", "tpu"]

IMAGE_VARIABLES: dict[Image, str] = {"cpu": "MARIN_IMAGE_CPU", "cuda": "MARIN_IMAGE_CUDA", "tpu": "MARIN_IMAGE_TPU"}
"""Environment variables with which a deployment says which images it has built, by digest: they change with every release."""

Label = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]


class Toleration(Config):
    """A taint that pods of a pool bear."""

    key: Label
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    @model_validator(mode="after")
    def _value_to_compare(self) -> Self:
        if (self.operator == "Equal") != (self.value is not None):
            raise ValueError(f"operator {self.operator!r} goes {'with' if self.operator == 'Equal' else 'without'} a value")
        return self


class Pool(Config):
    """Nodes of one kind: a Kueue flavor where there is Kueue.

    Attributes:
        name: of the flavor.
        kind: device profile of `marin_core.hardware`, or `cpu`.
        layout: how a job lies on them. `racks`: one job a rack, a fast fabric within each; `slices`: one job a slice, all of it;
            `nodes`: one job.
        nodes: installed.
        nodes_per_domain: to be used in a rack, a slice, or a group of nodes behind one switch.
        nodes_installed_per_domain: None = as many as are used. A gang that needs every node of a rack can't start while one is out.
        resource: what the scheduler counts devices as.
        devices_per_node: 0 without accelerators.
        architecture: of the nodes' processors.
        node_selector: labels that pick the pool's nodes.
        tolerations: of the taints on them.
        domain_label: node label whose value names the rack, the slice or the group of nodes.
        preferred_label: node label of the next larger group, in which a job of several racks should be.
        imex: `per_jobset`: each job gets a ComputeDomain for memory shared over NVLink; `none`: the hosts care for it.
        host_network: pods use their node's network.
        coordinator_port: where process 0 serves the others.
        ports: which the devices' runtime uses besides.
        environment: variables of every pod, such as the names of network interfaces.
        annotations: of every pod, such as the networks that it joins.
        extra_resources: which the scheduler counts besides, and no quota does, such as access to InfiniBand.
        host_paths: directories of the node that a pod may read: where they are in the pod → where on the node.
        image: which image's pods it runs.
        cpus, memory_gib: which the pod of a whole node asks for, and the most that any pod may.
        shared_memory_gib: size of /dev/shm, out of the pod's memory; None = the container runtime's 64 MB.
        grace_seconds: from SIGTERM to SIGKILL.
    """

    name: Name
    kind: str
    layout: Literal["racks", "slices", "nodes"] = "nodes"
    nodes: int = Field(ge=1)
    nodes_per_domain: int | None = Field(default=None, ge=1)
    nodes_installed_per_domain: int | None = Field(default=None, ge=1)
    resource: Label | None = None
    devices_per_node: int = Field(default=0, ge=0)
    architecture: Literal["amd64", "arm64"] = "amd64"
    node_selector: dict[Label, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    domain_label: Label | None = None
    preferred_label: Label | None = None
    imex: Literal["none", "per_jobset"] = "none"
    host_network: bool = False
    coordinator_port: int = Field(default=8476, ge=1, le=65535)
    ports: tuple[int, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    annotations: dict[Label, str] = Field(default_factory=dict)
    extra_resources: dict[Label, int] = Field(default_factory=dict)
    host_paths: dict[str, str] = Field(default_factory=dict)
    image: Image
    cpus: int = Field(ge=1)
    memory_gib: int = Field(ge=1)
    shared_memory_gib: int | None = Field(default=None, ge=1)
    grace_seconds: int = Field(ge=1)

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind != CPU:
            device_profile(kind)
        return kind

    @field_validator("environment")
    @classmethod
    def _not_ours(cls, environment: dict[str, str]) -> dict[str, str]:
        if ours := sorted(name for name in environment if name.startswith("MARIN_")):
            raise ValueError(f"{', '.join(ours)}: variables that begin with MARIN_ are set by the launcher")
        return environment

    @model_validator(mode="after")
    def _whole(self) -> Self:
        accelerated = self.kind != CPU
        if accelerated != (self.resource is not None) or accelerated != (self.devices_per_node > 0):
            raise ValueError(
                f"pool {self.name}: a pool of kind {self.kind!r} goes {'with' if accelerated else 'without'} resource and devices_per_node"
            )
        if self.layout != "nodes" and (self.nodes_per_domain is None or self.domain_label is None):
            raise ValueError(f"pool {self.name}: layout {self.layout!r} needs nodes_per_domain and domain_label")
        if self.layout == "racks" and self.domains > 1 and self.preferred_label is None:
            raise ValueError(f"pool {self.name}: several racks need a preferred_label, in which a job of more than one of them should be")
        if self.nodes_installed_per_domain is not None and self.nodes_installed_per_domain < (self.nodes_per_domain or 1):
            raise ValueError(f"pool {self.name}: nodes_installed_per_domain is less than the nodes_per_domain to be used")
        if self.nodes % (self.installed or 1):
            raise ValueError(f"pool {self.name}: {self.nodes} nodes are no whole number of domains of {self.installed}")
        if self.shared_memory_gib is not None and self.shared_memory_gib >= self.memory_gib:
            raise ValueError(f"pool {self.name}: shared_memory_gib comes out of memory_gib, so it must be less")
        return self

    @property
    def installed(self) -> int | None:
        """Nodes that stand in one domain."""
        return self.nodes_installed_per_domain or self.nodes_per_domain

    @property
    def domains(self) -> int:
        """Racks, slices or groups of nodes."""
        return self.nodes // (self.installed or self.nodes)

    @property
    def usable_nodes(self) -> int:
        """The most nodes that one job may have."""
        return self.domains * (self.nodes_per_domain or self.nodes)


class Profile(Config):
    """One cluster, as jobs see it.

    Attributes:
        name: of the cluster; with the namespace it says which launchers see each other's jobs.
        context: of the kubeconfig; None = the current one, or the pod's own service account.
        namespace: where JobSets are made.
        kueue: whether Kueue queues them. Without it a JobSet starts at once and its pods wait for nodes one by one.
        queue: LocalQueue.
        priorities: names of the WorkloadPriorityClasses that jobs may ask for: an unknown one would be waited for without a word.
        jobs: URL below which jobs have their folders; None = `.jobs` in the store.
        scratch: directory of a pod in which it keeps its own files; a volume that ends with the pod, unless there is a `scratch_claim`.
        scratch_claim: PersistentVolumeClaim (ReadWriteMany) of a file system that the pods of a gang mount at `scratch` instead. A gang
            whose store is a bucket needs it, since its processes write each checkpoint together before that is sent.
        service_account: whose rights to the store the pods have.
        region: where its nodes are, as buckets name it; pods then refuse to read much from another. None = no guard.
        retry_delay_seconds: the longest that a pod waits before it ends for a passing fault: JobSet starts it again at once.
        pools: in the order in which the queue tries them.
    """

    name: Name
    context: str | None = None
    namespace: Name
    kueue: bool = True
    queue: Name | None = None
    priorities: tuple[Name, ...] = ()
    jobs: str | None = None
    scratch: str = "/scratch"
    scratch_claim: Name | None = None
    service_account: Name = "marin-job"
    region: Name | None = None
    retry_delay_seconds: int = Field(default=60, ge=0, le=3600)
    pools: tuple[Pool, ...] = Field(min_length=1)

    @field_validator("scratch")
    @classmethod
    def _absolute(cls, scratch: str, info: ValidationInfo) -> str:
        if not scratch.startswith("/") or scratch == "/":
            raise ValueError("must be an absolute path below the root, like /scratch")
        return scratch.rstrip("/")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kueue and (self.queue is None or not self.priorities):
            raise ValueError("with Kueue a profile names its queue and its priorities")
        if len({pool.name for pool in self.pools}) != len(self.pools):
            raise ValueError("two pools have one name")
        return self

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Read the text of a profile.

        Args:
            source: what the text is, for errors.

        Raises:
            ConfigError: it is no YAML, or a field is wrong.
        """
        try:
            values = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{source} is no YAML: {error}", advice="Correct the file.") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{source} is no profile", advice=f"A profile has the fields {', '.join(cls.model_fields)}.")
        try:
            return cls.from_json(values)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error.message}", advice=error.advice) from error

    def pool(self, name: str) -> Pool:
        """A pool by its name.

        Raises:
            ConfigError: there is none of this name.
        """
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise ConfigError(f"{self.name} has no pool {name!r}", advice=f"Its pools are {', '.join(each.name for each in self.pools)}.")


def require_digest(image: str) -> str:
    """An image's reference, if it says by digest what exactly will run.

    Raises:
        ConfigError: it has a tag only, which may be another image tomorrow.
    """
    if not re.fullmatch(r"[^@\s]+@sha256:[0-9a-f]{64}", image):
        raise ConfigError(f"image {image!r} is not given by digest", advice="Write it as name@sha256:<64 hexadecimal digits>.")
    return image
