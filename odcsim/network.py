"""Seconds of transfers by a cluster's rates, where nobody has measured them.

A collective is a ring: it brings what other nodes hold into each node once, over all its network cards, and passes
every device on its way. A one-sided transfer is each device's own: it pulls all that other nodes hold itself, through
its own card, and cannot beat that card's line rate.
"""

from odcsim.cluster import Cluster


def collective(cluster: Cluster, size: float, holders: int, *, inside: bool = True) -> float:
    """Seconds to gather or reduce-scatter a unit of `size` bytes that `holders` devices hold together.

    Not `inside`: what moves within a node is in other seconds already.
    """
    within = _within(cluster, size, holders) if inside else 0.0
    if holders <= cluster.devices_per_node:
        return cluster.latency + within if within else 0.0
    ring = _remote(cluster, size, holders) / (cluster.nics_per_node * cluster.nic_share)
    return cluster.latency + cluster.hop * (holders - 1) + max(within, ring)


def one_sided(cluster: Cluster, size: float, holders: int, *, inside: bool = True) -> float:
    """Seconds in which one device gathers or pushes a unit of `size` bytes without the others.

    Inside a node it takes as long (measured so by the paper). Between nodes all devices are at it at the same time,
    each with a card of its own: as long as its line rate takes, or as many times a collective's as somebody has
    measured. Where cards are fewer, des makes transfers share them, and one that is alone cannot outrun the ring.
    """
    within = _within(cluster, size, holders) if inside else 0.0
    if holders <= cluster.devices_per_node:
        return cluster.latency + within if within else 0.0
    remote = _remote(cluster, size, holders)
    measured = cluster.one_sided_slowdown * remote / (cluster.devices_per_node * cluster.nic_share)
    ring = remote / (cluster.nics_per_node * cluster.nic_share)
    return cluster.latency + max(within, remote, measured, ring)


def inside(cluster: Cluster, size: float, holders: int) -> float:
    """Seconds of a unit's transfer within a node, of either kind, as if nodes had nothing to bring."""
    return cluster.latency + _within(cluster, size, holders) if holders > 1 else 0.0


def exchange(cluster: Cluster, size: float, *, collective: bool) -> float:
    """Seconds in which all devices of a node take in their parts of `size` bytes that other nodes have.

    No two devices of a node want the same bytes, so a one-sided pull moves no more than a ring, and nobody has measured
    that it reaches more of the line's rate. It has one card, where a ring uses them all.
    """
    remote = _remote(cluster, size, cluster.gpus) / cluster.nic_share
    if collective:
        return cluster.latency + cluster.hop * (cluster.nodes - 1) + remote / cluster.nics_per_node
    return cluster.latency + remote / cluster.devices_per_node


def _within(cluster: Cluster, size: float, holders: int) -> float:
    return size * (holders - 1) / holders / (cluster.link_bandwidth * cluster.link_share)


def _remote(cluster: Cluster, size: float, holders: int) -> float:
    """Seconds of what other nodes hold through one card at its line rate."""
    nodes = -(-holders // cluster.devices_per_node)
    return size * (nodes - 1) / nodes / cluster.nic_bandwidth
