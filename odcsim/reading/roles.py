"""Which column of a file means what, by the names people use."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from odcsim.errors import InputError, nearest
from odcsim.reading.fields import LABELS, MASKS, is_inside

LENGTH = (
    "length lengths len seqlen seqlens seq_len seq_length seq_lengths sequence_length num_tokens n_tokens ntokens "
    "token_count tokens total total_tokens total_length"
).split()
IDS = ("input_ids", "token_ids")
PROMPT = (
    "prompt prompt_length prompt_len prompt_tokens num_prompt_tokens prompt_lengths input input_length input_len "
    "input_tokens num_input_tokens contexttokens context_tokens prompt_ids"
).split()
RESPONSE = (
    "response response_length response_len response_tokens num_response_tokens response_lengths completion "
    "completion_length completion_len completion_tokens output output_length output_len output_tokens "
    "num_output_tokens generatedtokens generated_tokens response_ids completion_ids"
).split()
LOSS = "loss loss_tokens num_loss_tokens loss_length loss_len".split()
LOSS_LISTS = (*LABELS, *(mask for mask in MASKS if mask != "attention_mask"))
GROUP = "prompt_id group group_id uid prompt_uid prompt_idx prompt_index".split()
STEP = "step rl_step global_step training_step".split()
CHOSEN = "chosen chosen_length chosen_len chosen_tokens num_chosen_tokens chosen_ids".split()
REJECTED = "rejected rejected_length rejected_len rejected_tokens num_rejected_tokens rejected_ids".split()
COUNT = "count counts frequency".split()
QUANTILE = "q quantile".split()


@dataclass(frozen=True, slots=True)
class Roles:
    """Column names by what they hold. A row is as long as its `parts` together, or, where it is a pair, has two `sides`
    of which each is as long as its own parts."""

    parts: tuple[str, ...]
    loss: str | None = None
    group: str | None = None
    step: str | None = None
    count: str | None = None
    quantile: str | None = None
    sides: tuple[tuple[str, ...], ...] = ()

    @property
    def sequences(self) -> tuple[tuple[str, ...], ...]:
        """The parts of each sample of a row."""
        return self.sides or (self.parts,)

    @property
    def losses(self) -> tuple[str, ...]:
        """The loss tokens of each sample of a row, where a column has them."""
        if self.sides:
            return tuple(parts[-1] for parts in self.sides) if len(self.sides[0]) > 1 else ()
        return (self.loss,) if self.loss else ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that hold amounts, each once."""
        extra = (self.loss, self.count, self.quantile)
        return tuple(dict.fromkeys([*self.parts, *(name for name in extra if name)]))


class NoLengths(InputError):
    """None of a file's columns is one that people use for lengths."""


def assign(names: Sequence[str], column: str | None, where: str, lists: Collection[str] = ()) -> Roles:
    """The roles of a file's columns; an error lists them where no lengths can be told."""
    listed = [name for name in names if name in lists]
    sides: tuple[tuple[str, ...], ...] = ()
    prompt, response = first_of(names, PROMPT), first_of(names, RESPONSE)
    parts: tuple[str, ...]
    if column is not None:
        parts = (column_named(names, column, where),)
    elif whole := first_of(names, LENGTH) or first_of(listed, IDS):
        parts = (whole,)
    elif prompt and response:
        parts = (prompt, response)
    else:  # of a pair: what was chosen and what was rejected, each with the prompt where that has a column of its own
        before = (prompt,) if prompt else ()
        chosen, rejected = first_of(names, CHOSEN), first_of(names, REJECTED)
        sides = ((*before, chosen), (*before, rejected)) if chosen and rejected else ()
        parts = tuple(dict.fromkeys(name for side in sides for name in side))
    if not parts:
        raise NoLengths(
            f"no column of lengths among {', '.join(repr(n) for n in names)}",
            where=where,
            fix="choose one with --column, or call it 'length'",
        )
    loss = None
    if not sides:
        loss = first_of(names, LOSS) or first_of(listed, LOSS_LISTS) or (response if len(parts) == 2 else None)
    others = {"group": GROUP, "step": STEP, "count": COUNT, "quantile": QUANTILE}
    roles = Roles(parts, loss, **{role: first_of(names, known) for role, known in others.items()}, sides=sides)
    clash = roles.quantile and (roles.count or roles.group or roles.step or roles.loss)
    clash = clash or (roles.count and (roles.group or roles.step))
    if sides and (roles.quantile or roles.count):
        clash = clash or sides[0][-1]
    if clash:
        kind = "quantile" if roles.quantile else "count"
        raise InputError(f"column '{clash}' in a {kind} table, which has no single samples", where=where,
                         fix=f"leave out '{clash}' or '{roles.quantile or roles.count}'")  # fmt: skip
    return roles


def column_named(names: Sequence[str], column: str, where: str) -> str:
    """The column that somebody means by a name; it may lead into one."""
    name = next((n for n in names if n == column), None) or first_of(names, [_plain(column)])
    if name is None and is_inside(column, names):
        return column
    if name is None:
        raise InputError(f"no column '{column}'", where=where, fix=nearest(column, list(names)))
    return name


def first_of(names: Sequence[str], known: Sequence[str]) -> str | None:
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[word] for word in known if word in plain), None)


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")
