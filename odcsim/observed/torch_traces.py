"""Traces of torch.profiler, of one, some or all ranks of a run, become a SeenRun."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from odcsim.errors import InputError
from odcsim.fitting.events import MICRO, shortest
from odcsim.observed.clocks import Matched, match, offsets, rematch, strangers
from odcsim.observed.ranks import OwnTrace, numbers, read_rank
from odcsim.observed.run import NO, Met, RanStep, SeenRun, Track
from odcsim.support.numbers import counted

MOST, SHARE = 300, 0.8  # signatures of equal work that are told: those that take most of all its seconds


def read(paths: Sequence[Path | str], *, advance: Callable[[float], None] = lambda _: None) -> SeenRun:
    """`advance` hears what share of the files is read."""
    traces: dict[int, OwnTrace] = {}
    names = [str(path) for path in paths]
    for i, (path, numbered) in enumerate(zip(names, numbers(names), strict=True)):
        trace = read_rank(path, numbered)
        if trace.rank is None:
            fix = "name each file after its rank: rank0.json"
            raise InputError("does not say its rank", where=trace.where, fix=fix)
        if trace.rank in traces:
            problem = f"is of rank {trace.rank}, as {traces[trace.rank].where} is"
            raise InputError(problem, where=trace.where, fix="give one trace of each rank of one run")
        for other in traces.values():
            _check_together(trace, other)
        traces[trace.rank] = trace
        advance((i + 1) / len(paths))
    return _run(dict(sorted(traces.items())))


def _check_together(trace: OwnTrace, other: OwnTrace) -> None:
    """Refuse traces of two runs."""
    if trace.world and other.world and trace.world != other.world:
        problem = f"is of {trace.world} ranks, and {other.where} of {other.world}"
        raise InputError(problem, where=trace.where, fix="give traces of one run")
    if trace.gpu != other.gpu:
        problem = f"holds {'a' if trace.gpu else 'no'} GPU's kernels, unlike {other.where}"
        raise InputError(problem, where=trace.where, fix="give traces of one run")
    if not {s.number for s in trace.steps} & {s.number for s in other.steps}:
        problem = f"has no step in common with {other.where}"
        raise InputError(problem, where=trace.where, fix="give traces of the same steps of one run")


def _run(traces: dict[int, OwnTrace]) -> SeenRun:
    numbers = sorted(set.intersection(*({s.number for s in t.steps} for t in traces.values())))
    world = max(max(t.world for t in traces.values()), max(traces) + 1, len(traces))
    met = match(traces, numbers)
    ahead, apart = offsets(traces, met)
    met = rematch(traces, met, ahead)
    if (pair := strangers(traces, met, ahead, world)) is not None:
        one, other = (traces[rank].where for rank in pair)
        problem = f"its collectives and those of {one} do not match"
        raise InputError(problem, where=other, fix="give traces of the same steps of one run")
    origin = min(s.pieces.edges[0] + ahead[r] for r, t in traces.items() for s in t.steps if s.number == numbers[0])
    shifts = {rank: ahead[rank] - origin for rank in traces}
    steps = tuple(_step(number, traces, met, shifts, world) for number in numbers)
    tokens = all(m.tokens for step in steps for m in step.microbatches) and any(s.microbatches for s in steps)
    deferred = [s.deferred for t in traces.values() for s in t.steps if s.deferred is not None]
    units = max(t.units for t in traces.values())
    return SeenRun(
        source=f"torch.profiler traces of {counted(len(traces), 'rank')}",
        ranks=world,
        seen=tuple(traces),
        steps=steps,
        sync="deferred" if deferred and all(deferred) else "collective",
        layers=units or max(s.gathers for t in traces.values() for s in t.steps),
        alike=_alike(traces),
        transfers=shortest(
            [
                (c.kind, c.ranks or world, c.bytes, (c.done - c.came) * MICRO)
                for t in traces.values()
                for c in t.calls
                if c.bytes and c.done > c.came and c.kind in ("all-gather", "reduce-scatter")
            ]
        ),
        updates=tuple(seconds for t in traces.values() for seconds in t.updates),
        rests="tokens" if tokens else "seconds",
        lacks=_lacks(traces, met, apart, world, tokens),
    )


def _step(
    number: int, traces: Mapping[int, OwnTrace], met: Matched, shifts: Mapping[int, float], world: int
) -> RanStep:
    own = {rank: next(s for s in t.steps if s.number == number) for rank, t in traces.items()}
    wanted = {(rank, place) for rank, s in own.items() for place in {*s.calls.tolist(), *s.pieces.calls.tolist()}}
    chosen = [met.meetings[key] for key in {met.of[pair] for pair in wanted if pair in met.of}]

    def done(rank: int, place: int) -> float:
        return float(traces[rank].calls[place].done + shifts[rank]) * MICRO

    chosen.sort(key=lambda calls: (min(done(*pair) for pair in calls.items()), *sorted(calls.items())))
    places, meetings = dict[tuple[int, int], int](), list[Met]()
    for i, calls in enumerate(chosen):
        places |= dict.fromkeys(calls.items(), i)
        every = {rank: traces[rank].calls[place] for rank, place in calls.items()}
        one = next(iter(every.values()))
        came = {rank: float(call.came + shifts[rank]) * MICRO for rank, call in every.items()}
        size, last = max(c.bytes for c in every.values()), max(done(*pair) for pair in calls.items())
        meetings.append(Met(one.kind, size, one.ranks or world, came, last))
    tracks = []
    for rank, step in own.items():
        pieces = step.pieces
        of = np.array([places.get((rank, call), NO) for call in pieces.calls.tolist()], np.int64)
        tracks.append(Track(rank, pieces.kinds, (pieces.edges + shifts[rank]) * MICRO, of, pieces.microbatches))
    ran = tuple(replace(m, rank=rank) for rank, step in own.items() for m in step.microbatches)
    seconds = float(np.mean([track.seconds for track in tracks]))
    return RanStep(number, seconds, ran, tuple(tracks), tuple(meetings))


def _alike(traces: Mapping[int, OwnTrace]) -> dict[str, dict[int, float]]:
    """Of what all ranks ran, that with the most seconds."""
    if len(traces) < 2:
        return {}
    common = set.intersection(*(set(t.alike) for t in traces.values()))
    seconds = {name: sum(t.alike[name][1] for t in traces.values()) for name in common}
    most = sorted(common, key=lambda name: (-seconds[name], name))[:MOST]
    sums = np.cumsum([seconds[name] for name in most])
    most = most[: int(np.searchsorted(sums, SHARE * sums[-1])) + 1] if most else []
    return {name: {rank: t.alike[name][0] for rank, t in traces.items()} for name in most}


def _lacks(
    traces: Mapping[int, OwnTrace], met: Matched, apart: Sequence[int], world: int, tokens: bool
) -> tuple[str, ...]:
    """Each of these is not told."""
    said = []
    if len(traces) < world:
        unseen = world - len(traces)
        was = f"{counted(unseen, 'rank')} that {'was' if unseen == 1 else 'were'} not seen"
        said.append(f"when the {was} came to a meeting")
    if not tokens:
        said.append("what microbatches held: profile with record_shapes=True, or give their lengths")
    elif max(s.samples for t in traces.values() for s in t.steps) > 1:
        said.append("padding: tokens are those of the shapes of what was looked up")
    if not any(t.host for t in traces.values()):
        said.append("what the host did: profile with ProfilerActivity.CPU, too")
    elif not any(t.collects for t in traces.values()):
        said.append("garbage collection apart from a late host: profile with with_stack=True")
    if alone := sum(s.alone for t in traces.values() for s in t.steps):
        said.append(
            f"what {alone} forwards without a backward are for (evaluation, another model): they are in no microbatch"
        )
    if met.lonely:
        said.append(f"with whom ranks met in {met.lonely} calls of collectives that match no other rank's")
    if apart:
        said.append(
            f"how far the clocks of ranks {', '.join(map(str, apart))} are from the others': they share no collective"
        )
    return tuple(said)
