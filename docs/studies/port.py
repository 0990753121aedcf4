"""The port's two nodes: what its seconds would take of the network, where compute stays as it is.

    python docs/studies/port.py [--draws 40]

One row for each way in which far bytes may move, beside the two published figures (paper.toml, "port, two nodes").
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

from reproduce_paper import place_of, read, setting

from odcsim.cost import Cost
from odcsim.decide.setting import Setting, plan
from odcsim.executors.simulation import usage
from odcsim.support import tables

OURS, THEIRS = ("lb-mini", "on-demand"), ("lb-micro", "collective")
SLOWER = (2, 4, 6, 8)  # times what the cards' line rate takes
HEAD = ("far bytes", "on-demand s", "off", "collective s", "off", "speedup", "transfers shown")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draws", type=int, default=40, help="minibatches")
    args = parser.parse_args()
    cells = {c["sync"]: c for c in read()["cells"] if c["name"] == "port, two nodes" and c["kind"] == "seconds"}
    asked = setting(place_of(cells["on-demand"]), args.draws)
    published = [cells[sync]["published"] for _, sync in (OURS, THEIRS)]
    print(f"published: on-demand {published[0]} s, collective {published[1]} s")
    for row in (HEAD, *rows(asked, published)):
        print(*tables.lines([row], (-34, 13, 9, 14, 9, 9, 17)), flush=True)


def rows(asked: Setting, published: list[float]) -> Iterator[tuple[str, ...]]:
    files = {balancer: plan(asked, balancer) for balancer, _ in (OURS, THEIRS)}
    for name, cost in ways(asked.cost):
        found = [usage(files[b].schedules, cost.by(sync=sync)) for b, sync in (OURS, THEIRS)]
        seconds = [float(usage.makespan.mean()) for usage in found]
        shown = sum(found[0].idle_parts()[part] for part in ("gather", "push"))
        off = [f"{100 * (s / p - 1):+.1f} %" for s, p in zip(seconds, published, strict=True)]
        beside = f"{seconds[1] / seconds[0]:.2f}", f"{100 * shown:.1f} %"
        yield name, f"{seconds[0]:.1f}", off[0], f"{seconds[1]:.1f}", off[1], *beside


def ways(cost: Cost) -> Iterator[tuple[str, Cost]]:
    cluster = cost.cluster
    yield "at line rate, as the catalog has it", cost
    yield "hierarchical", cost.by(far="hierarchical")
    for times in SLOWER:
        slowdown = times * cluster.devices_per_node * cluster.nic_share
        yield f"one-sided {times} times as slow", replace(cost, cluster=replace(cluster, one_sided_slowdown=slowdown))
    for share in (0.5, 0.25, 0.15):
        slow = replace(cluster, nic_bandwidth=share * cluster.nic_bandwidth)
        yield f"cards at {share:.0%}", replace(cost, cluster=slow)


if __name__ == "__main__":
    main()
