"""What a trainer's log says of its steps, by the trainer's own keys."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain

TRACKED = ("_step", "step")  # by W&B and TensorBoard, whoever logs to them
# Seconds since the run began, or since 1970, as W&B and TensorBoard add them to every row.
CLOCKS = ("_runtime", "relative time (process)", "relative time (wall)", "wall time", "_timestamp", "timestamp")


@dataclass(frozen=True, slots=True)
class Logged:
    """Keys of one trainer; of several that say the same, the first that a log has counts."""

    name: str
    step: tuple[str, ...] = ("global_step",)
    seconds: tuple[str, ...] = ()  # of one step, a mean since the row before
    tokens: tuple[str, ...] = ()  # of one step, on all devices
    rate: tuple[str, ...] = ()  # tokens in a second
    seen: tuple[str, ...] = ()  # tokens since the run began, on all devices
    clock: tuple[str, ...] = ()  # seconds since the run began
    apart: tuple[str, ...] = ()  # seconds of a row that the clock counts, and that are no training
    per_device: bool = False  # its rate is of one device
    updates: bool = False  # a row may hold several optimizer steps
    padded: tuple[str, ...] = ()  # keys that may count padding, too
    way: tuple[str, str] | None = None  # (balancer, sync) that it runs where nobody says otherwise

    def known(self, names: Collection[str]) -> int:
        """How many of the ways to tell seconds and tokens of a step a log with these names has."""
        return sum(key_of(keys, names) is not None for keys in self._told)

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(chain(self.step, *self._told))

    @property
    def _told(self) -> tuple[tuple[str, ...], ...]:
        return self.seconds, self.tokens, self.rate, self.seen, self.clock


def key_of(keys: Iterable[str], names: Iterable[str]) -> str | None:
    """The first key that is among the names of a log, as the log calls it. W&B puts the name of the run before a key,
    Hugging Face's Trainer `train/`, and TensorBoard's files have no slashes."""
    forms: dict[str, str] = {}
    for name in names:
        plain = _plain(name.rpartition(" - ")[2])
        forms.setdefault(plain, name)
        forms.setdefault(plain.removeprefix("train_"), name)
    return next((forms[_plain(key)] for key in keys if _plain(key) in forms), None)


def _plain(name: str) -> str:
    return name.strip().lower().replace("/", "_")
