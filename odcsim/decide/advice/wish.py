"""What somebody wants trained, what they could rent for it, and what they have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from odcsim import catalog
from odcsim import profile as profiles
from odcsim.catalog import fits
from odcsim.decide import stock
from odcsim.decide.whole_run import steps
from odcsim.errors import InputError
from odcsim.profile import Profile
from odcsim.question import Question
from odcsim.trace import Trace

OF_ROWS = ("whole", "field", "price")


@dataclass(frozen=True, slots=True)
class Wish:
    """A question, on several kinds and numbers of GPUs; hours and dollars, where there is an end."""

    question: Question  # with its lengths read; its recipe has what the search may not choose
    gpus: tuple[str, ...]
    devices: tuple[int, ...]
    prices: Mapping[str, float] = field(default_factory=dict)  # of an hour of one GPU, by its name; of all or of none
    deadline: float | None = None  # seconds
    budget: float | None = None  # dollars

    def __post_init__(self) -> None:
        catalog.model(self.question.model)
        stock.known(self.question.trainer)
        kinds = {catalog.gpu_name(name): name for name in self.gpus}
        prices = {kinds.get(name.lower(), name): price for name, price in self.prices.items()}
        object.__setattr__(self, "prices", prices)
        if self.profile is not None and not any(map(self.profile_for, self.gpus)):
            problem = f"profile is for {self.profile.gpu}, and --gpus names {', '.join(self.gpus)}"
            fix = f"add {self.profile.gpu} to --gpus, or leave the profile out"
            raise InputError(problem, where=self.question.profile or "", fix=fix)
        for gpu in filter(self.profile_for, self.gpus):  # refused before anything is searched
            shape, recipe = catalog.model(self.question.model), self.question.recipe
            fits.choose(shape, catalog.gpu(gpu), self.devices[0], self.question.profile, recipe)
        if self.global_batch > self.trace.bundles.whole:
            known = f"{self.trace.bundles.whole:,} {self.trace.unit}s"
            problem = f"--global-batch {self.global_batch:,} and '{self.trace.name}' has {known}"
            raise InputError(problem, fix=f"give a smaller batch, or more {self.trace.unit}s")
        if unknown := set(self.prices) - set(self.gpus):
            raise InputError(f"--price of {min(unknown)}", fix=f"give prices of {', '.join(self.gpus)}")
        if missing := [name for name in self.gpus if name not in self.prices]:
            if self.budget is not None:
                fix = f"--price {missing[0]}=2.5, or no --budget"
                raise InputError(f"a budget without a price of {missing[0]}", fix=fix)
            if self.prices:  # dollars of some beside GPU-hours of others would be put in one order
                fix = f"add {missing[0]}=2.5, or give no --price"
                raise InputError(f"a price of {min(self.prices)}, but none of {missing[0]}", fix=fix)

    @property
    def trace(self) -> Trace:
        return self.question.trace  # type: ignore[no-any-return]

    @property
    def profile(self) -> Profile | None:
        """Seconds that somebody measured."""
        return None if self.question.profile is None else profiles.read(self.question.profile)

    def profile_for(self, gpu: str) -> str | None:
        """Its path, where it is of this kind of GPU."""
        known = self.profile
        return self.question.profile if known and known.gpu.lower() == catalog.gpu_name(gpu).lower() else None

    @property
    def global_batch(self) -> int:
        """Samples between two optimizer steps, on all devices together."""
        return self.question.global_batch or 0

    @property
    def epochs(self) -> float:
        return self.question.epochs or 1.0

    @property
    def steps(self) -> int:
        return steps(self.trace, self.epochs, self.global_batch, self.question.trainer)

    @property
    def run(self) -> str:
        return f"{self.epochs:g} epoch{'' if self.epochs == 1 else 's'}"

    @property
    def words(self) -> str:
        """What is to be trained, and for how long. A trainer that packs rows takes other steps on other numbers of
        GPUs."""
        trainer = self.question.trainer
        by = f": {self.steps:,} steps" if trainer is None else f" by {trainer}"
        lengths = f"{self.trace.name} ({self.trace.in_words}, longest {self.trace.longest:,} tokens)"
        return f"{self.question.model}, {lengths}, {self.run} of batches of {self.global_batch:,}{by}"

    def inputs(self) -> dict[str, Any]:
        """What was asked, by the names of the command line: without what holds of rows that are compared alone."""
        terms = {name: value for name, value in self.question.inputs().items() if name not in OF_ROWS}
        return {
            "trace": self.trace.name,
            "trace_samples": self.trace.size,
            "trace_longest": self.trace.longest,
            "unit": self.trace.unit,
            "trace_origin": self.trace.origin,
            "model": self.question.model,
            "profile": self.question.profile,
            "on_demand_cost": self.question.on_demand_cost,
            "gpus": list(self.gpus),
            "devices": list(self.devices),
            **terms,
            "epochs": self.epochs,
            "global_batch": self.global_batch,
            **({"steps": self.steps} if stock.known(self.question.trainer) is None else {}),  # else each row's own
            "prices": dict(self.prices),
            "deadline_seconds": self.deadline,
            "budget": self.budget,
        }
