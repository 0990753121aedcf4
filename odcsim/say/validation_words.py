"""How far a prediction was from real runs."""

from odcsim.answer import Answer, AnswerTable
from odcsim.results.metrics import PARTS
from odcsim.results.validation import Errors, Validation

ERRORS = ("quantity", "mean", "median", "p90", "worst")
KINDS = ("kind", "predicted s", "measured s", "error", "points", "median", "p90", "worst")
READ = (
    "Means are signed, the others of absolute values. A device's finish is over the makespan. Seconds of kinds are of "
    "all devices without waiting; points are of measured device time."
)
WORST = ("worst minibatch", "predicted s", "measured s", "error", "noise", "idle points", "furthest off")


def answer(validation: Validation) -> Answer:
    tables = [
        AnswerTable(ERRORS, errors(validation), "Errors"),
        AnswerTable(KINDS, kinds(validation), "By kind of span"),
        AnswerTable(WORST, worst(validation), "Worst minibatches"),
    ]
    sentences = [idle(validation), *queues(validation), READ]
    about, makespan = validation.measured.title, validation.makespan
    off = f"The prediction is {makespan.median:.1%} off at the median, {makespan.p90:.1%} at the 90th percentile."
    headline = " ".join([off, *cautions(validation)])
    return Answer("Validation", about, headline, question(validation), tables, sentences, figures(validation))


def figures(validation: Validation) -> list[tuple[str, str]]:
    """A few numbers to remember, each with what it is."""
    makespan = validation.makespan
    return [
        (f"{makespan.median:.1%}", "median error of a minibatch's makespan"),
        (f"{makespan.p90:.1%}", "90th percentile"),
        (f"{makespan.worst:.1%}", "worst"),
        (f"{validation.idle_error:+.1f}", "percentage points of idle"),
        (
            "unknown" if validation.noise is None else f"{validation.noise.median:.1%}",
            "median between two runs: the noise",
        ),
    ]


def question(validation: Validation) -> str:
    """What was compared with what."""
    one, other = validation.predicted, validation.measured
    runs = f", {validation.runs} runs" if validation.runs > 1 else ""
    return (
        f"{one.executor} ({one.fidelity}, {one.hardware}) against {other.executor} ({other.hardware}){runs}: "
        f"{other.model}{other.recipe.words}, {other.devices} devices, "
        f"{other.title}, {len(validation.minibatches)} minibatches, schedule {other.digest}"
    )


def cautions(validation: Validation) -> list[str]:
    """What the errors do not say."""
    lines = []
    if validation.measured.executor != "engine":
        lines.append("Both timelines are simulated: this says nothing about real devices.")
    elif validation.executor_check:
        lines.append("Executor check: compute was emulated from predicted seconds, so these errors are not of compute.")
    if validation.predicted.fidelity == "extrapolated":
        lines.append("The prediction is extrapolated: the schedule goes beyond what its seconds were measured on.")
    if validation.noise is None:
        lines.append("One run only: how much of the errors is noise is not known. Give several runs to see it.")
    return lines


def errors(validation: Validation) -> list[tuple[str, ...]]:
    """Rows under `ERRORS`."""
    rows: list[tuple[str, ...]] = [("makespan", *_errors(validation.makespan))]
    if validation.noise is not None:
        rows.append(("one run against another", "", *_errors(validation.noise)[1:]))
    return [*rows, ("finish of a device", *_errors(validation.finish))]


def idle(validation: Validation) -> str:
    parts = [(p, 100 * (validation.idle_predicted[p] - validation.idle_measured[p])) for p in PARTS]
    listed = ", ".join(f"{name} {points:+.2f}" for name, points in parts)
    before, after = (sum(i.values()) for i in (validation.idle_predicted, validation.idle_measured))
    return f"idle: predicted {before:.2%}, measured {after:.2%}, {validation.idle_error:+.2f} points ({listed})"


def queues(validation: Validation) -> list[str]:
    """What differed where devices shared a queue, and how it was compared."""
    if validation.same_taker is None:
        return []
    words = f"queues: {validation.same_taker:.0%} of {validation.queued} entries were run by the predicted device"
    return [f"{words}; devices' finish times are compared in their order, not device by device"]


def kinds(validation: Validation) -> list[tuple[str, ...]]:
    """Rows under `KINDS`."""
    rows: list[tuple[str, ...]] = []
    for k in validation.kinds:
        error = "" if k.error is None else _percent(k.error)
        seconds = (f"{k.predicted_seconds:.4g}", f"{k.measured_seconds:.4g}", error)
        each = ("", "", "") if k.errors is None else _errors(k.errors)[1:]
        rows.append((k.kind, *seconds, f"{k.error_points:+.2f}", *each))
    return rows


def worst(validation: Validation) -> list[tuple[str, ...]]:
    """Rows under `WORST`."""
    return [
        (
            str(m.minibatch),
            f"{m.predicted_seconds:.4g}",
            f"{m.measured_seconds:.4g}",
            _percent(m.error),
            "" if m.noise is None else f"{m.noise:.1%}",
            f"{m.idle_error_points:+.2f}",
            f"{m.furthest} {m.furthest_seconds:+.3g} s",
        )
        for m in validation.worst()
    ]


def _errors(e: Errors) -> tuple[str, str, str, str]:
    return _percent(e.mean), f"{e.median:.2%}", f"{e.p90:.2%}", f"{e.worst:.2%}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:+.2f}%"
