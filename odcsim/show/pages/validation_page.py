"""How far a prediction was from real runs, in words, tables and a page."""

from pathlib import Path

from odcsim import plots
from odcsim.results.metrics import PARTS
from odcsim.results.validation import Errors, Validation
from odcsim.show.pages import page
from odcsim.support.files import write_text

ERRORS = ("quantity", "mean", "median", "p90", "worst")
KINDS = ("kind", "predicted s", "measured s", "error", "points", "median", "p90", "worst")
WORST = ("minibatch", "predicted s", "measured s", "error", "noise", "idle points", "furthest off")


def asked(validation: Validation) -> str:
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


def write_validation(validation: Validation, path: Path | str) -> None:
    title, makespan, every = "Predicted against measured", validation.makespan, validation.minibatches
    between = "unknown" if validation.noise is None else f"{validation.noise.median:.1%}"
    figures = [
        (f"{makespan.median:.1%}", "median error of a minibatch's makespan"),
        (f"{makespan.p90:.1%}", "90th percentile"),
        (f"{makespan.worst:.1%}", "worst"),
        (f"{validation.idle_error:+.1f}", "percentage points of idle"),
        (between, "median between two runs: the noise"),
    ]
    noise = [m.noise for m in every if m.noise is not None]
    drawn = plots.agreement([m.predicted_seconds for m in every], [m.measured_seconds for m in every], noise)
    signed = "Means are signed, the others of absolute values. A device's finish is over the makespan."
    body = [
        page.heading(title, 1),
        page.paragraph(asked(validation), "asked"),
        *(page.answer([text], yes=False) for text in cautions(validation)),
        page.key_figures(figures),
        plots.embed(drawn, "agreement"),
        page.heading("Errors"),
        page.table(ERRORS, errors(validation), name="Errors"),
        page.paragraph(signed, "note"),
        *map(page.paragraph, (idle(validation), *queues(validation))),
        page.heading("By kind of span"),
        page.table(KINDS, kinds(validation), name="By kind of span"),
        page.paragraph("Seconds of all devices without waiting; points are of measured device time.", "note"),
        page.heading("Worst minibatches"),
        page.table(WORST, worst(validation), name="Worst minibatches"),
    ]
    write_text(Path(path), page.with_figures(title, body))


def _errors(e: Errors) -> tuple[str, str, str, str]:
    return _percent(e.mean), f"{e.median:.2%}", f"{e.p90:.2%}", f"{e.worst:.2%}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:+.2f}%"
