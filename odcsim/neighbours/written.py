"""The settings that say a row, as the trainer reads them, and what they rest on."""

from collections.abc import Iterator
from typing import Any

from odcsim.neighbours.neighbour import ChosenRow, Neighbour, Settings, carried


def lines(trainer: Neighbour, row: ChosenRow) -> Iterator[str]:
    """Comments first: what the settings rest on, and what they cannot say."""
    yield from (f"# {note}" for note in notes(trainer, row))
    yield from written(trainer.settings(row), trainer.form)


def notes(trainer: Neighbour, row: ChosenRow) -> Iterator[str]:
    yield _priced(row)
    yield f"names as in {trainer.source}{' and DPOConfig' if row.pairs else ''}"
    if row.data:
        yield f"lengths were those of {row.data}: train on that dataset"
    if row.model and not carried(row, "model"):
        yield f"the model is {row.model}, by the catalogue's name: name its weights as well"
    if not row.sync.meets:
        yield f"on-demand by odc_engine, with max_tokens = {row.max_tokens}: see {trainer.engine}"
    else:
        yield f"{trainer.name} assigns samples by its own rule: {_rule(trainer, row)}"
    if trainer.rollouts:
        each = f"{row.rollouts} of each" if row.rollouts > 1 else "one of each (--rollouts N says otherwise)"
        yield f"for reinforcement learning on answers to {row.prompts:,} prompts, {each}: not for supervised data"
    if row.pairs:
        yield "not in the price: the reference model's forward pass, which precompute_ref_log_probs runs beforehand"
    if trainer.launcher:
        each = ", on each machine with its --machine_rank and --main_process_ip" if row.nodes > 1 else ""
        yield f"run it by {trainer.launched(row)}{each}"
    if trainer.caution:
        yield trainer.caution
    yield from (f"not said here: {words}" for name, words in _unsaid(row).items() if name not in trainer.knows)


def _priced(row: ChosenRow) -> str:
    """What the price is of, and what becomes of a step where rows are packed."""
    words, unit = (
        f"{row.balancer} + {row.way}, {row.max_tokens:,} tokens a microbatch",
        "pairs" if row.pairs else "samples",
    )
    if row.samples_made:
        return f"{words}, {row.samples_made:,.0f} {unit} and {row.tokens_made:,.0f} tokens a step"
    return f"{words}, {row.samples:,} {unit} a step"


def _rule(trainer: Neighbour, row: ChosenRow) -> str:
    return next((rule.says for rule in trainer.own if rule.balancer == row.balancer), trainer.rule)


def _unsaid(row: ChosenRow) -> dict[str, str]:
    """What of the row is not as usual, and may have no setting."""
    said = {
        "hybrid": "sharding inside each node alone" if row.hybrid else "",
        "on_host": "states of the optimizer on the host" if row.on_host else "",
        "rank": f"adapters of rank {row.rank}" if row.rank else "",
        "moments": f"moments in {row.moments}" if row.moments != "fp32" else "",
        "operators": "recompute of operators alone" if row.recompute == "operators" else "",
        "layers": "recompute of every second layer alone" if row.recompute == "layers" else "",
        "kernels": f"kernels as they were assumed: {', '.join(row.kernels)}" if row.kernels else "",
    }
    return {name: words for name, words in said.items() if words}


def written(settings: Settings, form: str) -> Iterator[str]:
    """As the trainer reads them: a line for each."""
    for name, value in settings.items():
        if form == "hydra":
            yield f"{name}={_word(value)}"
        elif form == "yaml":
            yield from _yaml(name, value)
        elif value is None:
            yield name
        else:
            yield f"{name} {_word(value)}"


def _yaml(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{name}: {_word(value)}"
        return
    yield f"{name}:"
    yield from (f"  {line}" for key, item in value.items() for line in _yaml(key, item))


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
