"""A pipeline of Megatron laid out by hand and written as StragglerAnalysis has it: to know what a step is made of."""

from dataclasses import dataclass

import numpy as np

SEND, GATHER, EMBED, SCATTER, CLIP, UPDATE = 0.005, 0.015, 0.05, 0.02, 0.001, 0.002


@dataclass(frozen=True)
class Laid:
    """`forward` and `backward`: seconds [step, replica, stage, microbatch]."""

    forward: np.ndarray
    backward: np.ndarray
    late: float = 0.0  # seconds that the host leaves before each operation

    @property
    def shape(self):
        return self.forward.shape

    def rank(self, replica, stage):
        """One of two of each place is left out."""
        return 2 * (stage * self.shape[1] + replica)

    def rows(self):
        return [row for step in range(self.shape[0]) for row in self._step(step)]

    def _step(self, step):
        _, replicas, stages, _ = self.shape
        rows, came = [], np.zeros((replicas, stages))

        def add(replica, stage, name, begin, end, number=0, microbatch=-1):
            rows.append((replica, stage, self.rank(replica, stage), step, name, begin, end - begin, number, microbatch))

        for replica in range(replicas):
            for stage in range(stages):
                add(replica, stage, "params-all-gather", 0.0, GATHER)
            came[replica] = self._passes(step, replica, add)
            for stage in range(stages):
                add(replica, stage, "gc", came[replica, stage], came[replica, stage])
            if stages > 1:
                ends = [0, stages - 1]
                until = came[replica, ends].max() + EMBED
                for stage in ends:
                    add(replica, stage, "embedding-grads-all-reduce", came[replica, stage], until)
                    came[replica, stage] = until
        for stage in range(stages):
            until = came[:, stage].max() + SCATTER
            for replica in range(replicas):
                add(replica, stage, "grads-reduce-scatter", came[replica, stage], until)
            came[:, stage] = until
        until = came.max() + CLIP
        for replica in range(replicas):
            for stage in range(stages):
                add(replica, stage, "optimizer-clip-main-grad", came[replica, stage], until)
                add(replica, stage, "optimizer", until, until + UPDATE)
        return rows

    def _passes(self, step, replica, add):
        """When each stage is done with its passes."""
        _, _, stages, microbatches = self.shape
        orders = [order(stage, stages, microbatches) for stage in range(stages)]
        at, ended = [GATHER] * stages, {}
        while any(orders):
            for stage in range(stages):
                while orders[stage]:
                    forward, m = orders[stage][0]
                    giver = stage - 1 if forward else stage + 1
                    if 0 <= giver < stages and (forward, m, giver) not in ended:
                        break
                    orders[stage].pop(0)
                    name = "forward" if forward else "backward"
                    if 0 <= giver < stages:
                        there = max(at[stage], ended[forward, m, giver]) + SEND
                        add(replica, stage, f"{name}-recv", at[stage], there, m)
                        at[stage] = there
                    begin = at[stage] + self.late
                    end = begin + (self.forward if forward else self.backward)[step, replica, stage, m]
                    add(replica, stage, f"{name}-compute", begin, end, m, m)
                    at[stage] = ended[forward, m, stage] = end
                    if 0 <= (taker := stage + 1 if forward else stage - 1) < stages:
                        add(replica, stage, f"{name}-send", end, end + SEND, m)
                        assert taker != stage
        return np.array(at)


def order(stage, stages, microbatches):
    """Of one forward and one backward in turn: (whether it is a forward, microbatch)."""
    ahead = min(stages - 1 - stage, microbatches)
    forwards, backwards = [(True, m) for m in range(microbatches)], [(False, m) for m in range(microbatches)]
    turns = [one for pair in zip(forwards[ahead:], backwards, strict=False) for one in pair]
    return [*forwards[:ahead], *turns, *backwards[microbatches - ahead :]]


def made(seed=0, *, uneven=0.0, slow=None, stages=(1.0, 1.0), steps=4, replicas=8, microbatches=6, noise=0.0, late=0.0):
    """`uneven`: the spread of what microbatches hold; `slow`: (replica, stage) and how many times as slow it is."""
    rng = np.random.default_rng(seed)
    held = rng.lognormal(0, uneven, (steps, replicas, 1, microbatches))
    seconds = held * np.array(stages)[None, None, :, None]
    if slow is not None:
        (replica, stage), times = slow
        seconds = seconds.copy()
        seconds[:, replica, stage] *= times
    forward, backward = (each * seconds * rng.lognormal(0, noise, seconds.shape) for each in (0.1, 0.2))
    return Laid(forward, backward, late)


def write(path, rows):
    import pyarrow
    from pyarrow import parquet

    names = "dp_rank stage rank step optype start_ts duration seq_id mb_id".split()
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pyarrow.table(columns), path)
    return path
