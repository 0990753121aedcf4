"""What the model runs on: a GPU's figures, how many sit in a node behind which network, and seconds of transfers by
these rates, where nobody has measured them.

A collective is a ring: it brings what other nodes hold into each node once, over all its network cards, and passes
every device on its way. A one-sided transfer is each device's own: it pulls all that other nodes hold itself, through
its own card, and cannot beat that card's line rate.
"""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from odcsim.errors import InputError, nearest
from odcsim.support.inputs import read_text, reading
from odcsim.support.values import Given


@dataclass(frozen=True, slots=True)
class GPU:
    """One accelerator. Rates are per GPU and one direction; FLOP/s are dense bf16."""

    name: str
    peak_flops: float  # datasheet, FLOP/s
    matmul_flops: float  # best matmul measured by anybody we can cite, FLOP/s
    memory_bytes: float
    memory_bandwidth: float  # bytes/s
    link_bandwidth: float  # bytes/s to the peers of the node, all of them together
    nic_bandwidth: float  # bytes/s of the network share that one GPU typically has
    devices_per_node: int = 8
    family: str = ""  # whose rates inside a step it is known by
    assumed: tuple[str, ...] = ()  # of the figures above, those that nobody stated or measured


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of GPUs. By default every GPU has a NIC of its own, so that nobody shares a link."""

    gpus: int
    devices_per_node: int
    link_bandwidth: float  # bytes/s of one device inside its node
    nic_bandwidth: float  # bytes/s of one NIC
    nics_per_node: int
    # Between nodes each device pulls its remote part itself, where a ring takes it in once per node. The paper measured
    # 3-4x between ODC's primitives and NCCL's collectives on 2 and 4 nodes (arXiv 2601.19362).
    one_sided_slowdown: float = 3.5
    latency: float = 20e-6  # seconds of one transfer or meeting, however small
    jitter: float = 0.0  # standard deviation of a compute step's time, as a fraction; des draws it
    slow: tuple[tuple[int, float], ...] = ()  # (device, its compute takes this many times as long)
    sample_noise: float = 0.0  # standard deviation of what a sample's compute takes over what was planned
    swing: float = 0.0  # standard deviation of a device's speed from one spell to the next; des draws it
    spell: float = 1.0  # seconds for which a device keeps its speed
    link_share: float = 0.8  # of the link's rate that transfers inside a node reach: as NCCL's do on A100 and H100
    nic_share: float = 0.55  # of the cards' line rate that a collective between nodes reaches (docs/published-runs.md)
    hop: float = 2e-6  # seconds in which a ring between nodes passes one device, however little it brings
    peak_flops: float = 0.0  # of one device, by its datasheet; 0: not known
    memory_bytes: float | None = None  # of one device, where known

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.devices_per_node)

    @property
    def eventful(self) -> bool:
        """Whether links are shared or something is drawn, which discrete events know and the scan does not."""
        return bool(self.shared_links or self.jitter or self.swing)

    @property
    def shared_links(self) -> bool:
        """Whether devices of a node wait for each other's one-sided transfers: the analytic executor cannot tell."""
        return self.nodes > 1 and self.nics_per_node < self.devices_per_node

    def within(self, size: float, holders: int) -> float:
        """Seconds of a unit of `size` bytes inside a node, of which `holders` devices have a part each."""
        return size * (holders - 1) / holders / (self.link_bandwidth * self.link_share)

    def remote(self, size: float, holders: int) -> float:
        """Seconds of what other nodes hold of it through one card at its line rate."""
        nodes = -(-holders // self.devices_per_node)
        return size * (nodes - 1) / nodes / self.nic_bandwidth

    def collective(self, size: float, holders: int, *, inside: bool = True) -> float:
        """Seconds to gather or reduce-scatter a unit of `size` bytes that `holders` devices hold together.

        Not `inside`: what moves within a node is in other seconds already.
        """
        within = self.within(size, holders) if inside else 0.0
        if holders <= self.devices_per_node:
            return self.latency + within if within else 0.0
        ring = self.remote(size, holders) / (self.nics_per_node * self.nic_share)
        return self.latency + self.hop * (holders - 1) + max(within, ring)

    def one_sided(self, size: float, holders: int, *, inside: bool = True) -> float:
        """Seconds in which one device gathers or pushes a unit of `size` bytes without the others.

        Inside a node it takes as long (measured so by the paper). Between nodes all devices are at it at the same time,
        each with a card of its own: as long as its line rate takes, or as many times a collective's as somebody has
        measured. Where cards are fewer, des makes transfers share them, and one that is alone cannot outrun the ring.
        """
        within = self.within(size, holders) if inside else 0.0
        if holders <= self.devices_per_node:
            return self.latency + within if within else 0.0
        remote = self.remote(size, holders)
        measured = self.one_sided_slowdown * remote / (self.devices_per_node * self.nic_share)
        ring = remote / (self.nics_per_node * self.nic_share)
        return self.latency + max(within, remote, measured, ring)

    def exchange(self, size: float, *, collective: bool) -> float:
        """Seconds in which all devices of a node take in their parts of `size` bytes that other nodes have.

        No two devices of a node want the same bytes, so a one-sided pull moves no more than a ring, and nobody has
        measured that it reaches more of the line's rate. It has one card, where a ring uses them all.
        """
        remote = self.remote(size, self.gpus) / self.nic_share
        if collective:
            return self.latency + self.hop * (self.nodes - 1) + remote / self.nics_per_node
        return self.latency + remote / self.devices_per_node


def cluster_of(gpu: GPU, devices: int, devices_per_node: int | None = None) -> Cluster:
    """The usual cluster of this GPU: full nodes, a NIC for each device."""
    per_node = devices_per_node or gpu.devices_per_node
    cluster = Cluster(devices, per_node, gpu.link_bandwidth, gpu.nic_bandwidth, per_node)
    return replace(cluster, peak_flops=gpu.peak_flops, memory_bytes=gpu.memory_bytes)


# Key of a cluster file, field of Cluster, factor to the field's unit (none: a whole number), least value.
_KEYS: dict[str, tuple[str, float | None, float]] = {
    "devices_per_node": ("devices_per_node", None, 1),
    "nics_per_node": ("nics_per_node", None, 1),
    "link_gb_s": ("link_bandwidth", 1e9, 1e-6),
    "nic_gbit_s": ("nic_bandwidth", 1e9 / 8, 1e-6),
    "one_sided_slowdown": ("one_sided_slowdown", 1.0, 1e-6),
    "latency_us": ("latency", 1e-6, 0.0),
    "link_share": ("link_share", 1.0, 1e-3),
    "nic_share": ("nic_share", 1.0, 1e-3),
    "hop_us": ("hop", 1e-6, 0.0),
    "jitter": ("jitter", 1.0, 0.0),
    "swing": ("swing", 1.0, 0.0),
    "spell_seconds": ("spell", 1.0, 1e-3),
    "sample_noise": ("sample_noise", 1.0, 0.0),
}


def read_cluster(path: Path | str, base: Cluster) -> Cluster:
    """The base cluster with what a TOML file says otherwise; a file that changes the node's size sets its NICs too.

    `[slow]` has a device's number and how many times as long its compute takes: `3 = 1.1`.
    """
    values: dict[str, Any] = {}
    slow: dict[int, float] = {}
    for key, value in read_toml(path, "a cluster's").items():
        given = Given(key, value, str(path))
        if key in _KEYS:
            name, factor, least = _KEYS[key]
            values[name] = given.whole() if factor is None else given.number(least) * factor
            continue
        if key != "slow":
            raise InputError(f"unknown key '{key}'", where=str(path), fix=nearest(key, [*_KEYS, "slow"]))
        if not isinstance(value, dict):
            given.refuse("expected a table such as {3 = 1.1}")
        for device, times in value.items():
            if not device.isdecimal() or len(device) > 9 or int(device) >= base.gpus:
                problem, fix = f"slow names device {device[:20]!r}", f"devices are 0 to {base.gpus - 1}"
                raise InputError(problem, where=str(path), fix=fix)
            slow[int(device)] = Given(f"slow device {device}", times, str(path)).number(1e-6)
        values["slow"] = tuple(sorted(slow.items()))
    if "devices_per_node" in values:
        values.setdefault("nics_per_node", values["devices_per_node"])
    return replace(base, **values)


def read_toml(path: Path | str, whose: str) -> dict[str, Any]:
    with reading(path, missing=f"give {whose} TOML file", expected="TOML"):
        return tomllib.loads(read_text(path))
