"""A pipeline's steps run again from their own operations: a pass begins when its rank is free and the stage that hands
it its input is done, and the step ends when the last rank is.

Columns are pipelines of one step, one for each data-parallel rank. Those in which every stage runs its passes in the
same order are replayed together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from odcsim.observed.run import NO
from odcsim.timeline import Floats, Ints

Gaps = Mapping[str, Floats]  # seconds by part of the step


class PassNode(NamedTuple):
    """A forward or backward of a microbatch on a stage. The nodes that it comes after are NO where there is none."""

    stage: int
    place: int  # among its microbatch's on this stage: forwards of its chunks, then their backwards
    microbatch: int
    before: int  # on its own stage
    giver: int  # on the stage that hands it its input


@dataclass(frozen=True, slots=True, eq=False)
class PipelineColumns:
    """Columns with the same order of passes."""

    nodes: tuple[PassNode, ...]  # each behind those that it comes after
    last: Ints  # the last node of each stage
    steps: Ints  # the place of each column's step
    replicas: Ints  # the data-parallel rank of each column, by its place
    units: Ints = field(repr=False)  # the row of PipelineGrid.seconds [column, microbatch]
    gaps: Gaps = field(repr=False)  # from when a pass could begin to when it does [node, column]
    tails: Gaps = field(repr=False)  # after the last pass, without waiting [stage, column]


@dataclass(frozen=True, slots=True, eq=False)
class PipelineGrid:
    """All steps of a run. A unit is a microbatch of one step and one data-parallel rank."""

    ranks: Ints  # [replica, stage]
    measured: Floats  # seconds of each step
    columns: tuple[PipelineColumns, ...]
    seconds: Floats = field(repr=False)  # of passes [unit, stage, place]
    replicas: Ints = field(repr=False)  # of units
    steps: Ints = field(repr=False)  # of units
    numbers: Ints = field(repr=False)  # of units, among those of their column

    def replay(self, seconds: Floats, parts: Sequence[tuple[Gaps, Gaps]] = ()) -> Floats:
        """Seconds of each step, with these of passes, and with these gaps and tails of each of `columns`."""
        ends = np.zeros(len(self.measured))
        for columns, (gaps, tails) in zip(self.columns, parts or self.parts(), strict=True):
            np.maximum.at(ends, columns.steps, arrivals(columns, seconds, gaps, tails).max(axis=0))
        return ends

    def parts(self) -> list[tuple[Gaps, Gaps]]:
        return [(columns.gaps, columns.tails) for columns in self.columns]


def arrivals(columns: PipelineColumns, seconds: Floats, gaps: Gaps, tails: Gaps) -> Floats:
    """When each stage of each column is done, if none of them waits for another column [stage, column]."""
    between: Floats = np.sum([*gaps.values()], axis=0)
    ended: list[Floats] = []
    for node, gap in zip(columns.nodes, between, strict=True):
        ready = ended[node.before] if node.before != NO else np.zeros(len(columns.steps))
        if node.giver != NO:
            ready = np.maximum(ready, ended[node.giver])
        ended.append(ready + gap + seconds[columns.units[:, node.microbatch], node.stage, node.place])
    done: Floats = np.stack([ended[i] for i in columns.last]) + np.sum([*tails.values()], axis=0)
    return done
