"""What other ways to run the same samples would bring to a run that exists: gains, in order of effort."""

from collections.abc import Iterator, Mapping
from typing import Any

from odcsim.decide.comparison import inputs
from odcsim.decide.diagnosis.alternatives import alternatives
from odcsim.decide.diagnosis.outcome import Breakdown, Change, Changes
from odcsim.decide.diagnosis.pipeline_changes import pipeline_changes
from odcsim.decide.diagnosis.replay import OFF, Replay, replay
from odcsim.decide.diagnosis.worth import change, worth
from odcsim.errors import InputError
from odcsim.neighbours import TRAINERS
from odcsim.observed.run import SeenRun
from odcsim.program import sync_named
from odcsim.support.numbers import counted


def changes(run: SeenRun, breakdown: Breakdown, words: Mapping[str, Any]) -> Changes:
    """`words`: those of a question but its lengths and devices, which the run has."""
    if len(set(run.stages.values())) > 1:
        if words.get("trainer") is not None:
            fix = "leave it out: none of those trainers has stages"
            raise InputError(f"--trainer {words['trainer']} given for a pipeline", where=run.source, fix=fix)
        return pipeline_changes(run, breakdown, words)
    if run.stages:
        cannot = "how much faster other ways would be: of a pipeline one stage alone was seen"
        return Changes((), 0.0, "", cannot=(cannot,))
    if words.get("devices") not in (None, run.ranks):
        given, fix = words["devices"], "leave it out: a run's own files say it"
        raise InputError(f"--devices {given} given for a run of {run.ranks} ranks", where=run.source, fix=fix)
    if run.ranks < 2:
        return Changes((), 0.0, "", cannot=("with one device nobody waits, and there is nothing to balance",))
    if len(run.seen) == 1:
        seen = f"one of the {run.ranks} ranks was seen, and the others may be why it waits: give the files of all"
        return Changes((), 0.0, "", cannot=(f"how much faster other ways would be: {seen}",))
    try:
        known = replay(run, breakdown, words)
    except InputError as error:
        if error.where != run.source:
            raise
        return Changes((), 0.0, "", cannot=(f"how much faster other ways would be: {error.problem}",))
    step, ways = float(known.measured.mean()), list[Change]()
    for one in worth(alternatives(known)):
        rests, row = [one.rests] if one.rests else [], one.evaluation.rows[0]
        if row.one_sided and sync_named(run.sync).meets:
            own = f"{1e3 * known.setting.cost.profile.publish:.1f} ms of its own in a step"
            rests.append(f"on-demand's transfers as long as collectives of their size, and {own}")
        if row.sync != run.sync and not known.fits:
            rests.append(f"what {row.sync} needs of memory is not known")
        whole = known.deals.whole
        ways.append(change(one, known.setting, step, "; ".join(rests), sized=known.sized, whole=whole))
    return Changes(tuple(ways), known.replayed, _rests(known), inputs(known.setting), tuple(_cannot(known)))


def _rests(known: Replay) -> str:
    """What is known of samples and of seconds."""
    deals, shown = known.deals, known.setting.cost.recipe.prefetch == "fsdp2"
    contents = f"{counted(deals.trace.size, deals.trace.unit)} in {counted(len(deals.places), 'step')}"
    samples = f"the lengths of {contents}"
    if deals.whole:
        samples = f"{contents}, moved whole since what is in them is not known: at least so much"
    hidden = "" if shown else "; transfers that compute does not hide, as it ran"
    return f"{samples}; {known.seconds.rests}{hidden}"


def _cannot(known: Replay) -> Iterator[str]:
    yield from known.seconds.cannot
    if abs(known.replayed - 1) > OFF:
        yield f"certain speedups: the run's own steps, simulated, take {known.replayed:.2f} times what was measured"
    if len(known.deals.places) < 2:
        yield "how speedups differ from step to step: one step was seen"
    if known.deals.unseen:
        yield f"what {counted(known.deals.unseen, 'rank')} held that nobody saw: taken to be like what others held"
    if known.sized and not known.fits and known.evaluation.rows[0].memory_limit is not None:
        yield "memory: by its estimate what ran does not fit"
    if known.deals.whole and known.trainer in TRAINERS:
        yield f"what {known.trainer}'s own settings would change: they need lengths"
