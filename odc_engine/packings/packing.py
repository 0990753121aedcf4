"""How a run splits a script's first minibatch and assigns its samples to ranks."""

from dataclasses import dataclass

PROCESSES = 2  # that a script is started with, if it is not cut otherwise
Places = tuple[int, ...]  # of samples in the dataset


@dataclass(frozen=True, slots=True)
class Packing:
    """`of`: the processes whose minibatch it is, when these run it."""

    processes: int = PROCESSES
    of: int = PROCESSES
    otherwise: bool = False

    def samples(self, usual: int) -> int:
        """Of each process, where each of `of` would have had `usual`."""
        return usual * self.of // self.processes

    def again(self, microbatches: list[Places]) -> list[Places]:
        """The same samples one by one; two by two where they are alone already."""
        if not self.otherwise:
            return microbatches
        every = [place for part in microbatches for place in part]
        size = 2 if all(len(part) <= 1 for part in microbatches) else 1
        return [tuple(every[i : i + size]) for i in range(0, len(every), size)]

    def limit(self, usual: int, longest: int) -> int:
        """Of a microbatch's tokens: those of the longest sample, or where it is so already, twice as many."""
        return usual if not self.otherwise else longest if usual > longest else 2 * usual

    def __str__(self) -> str:
        word = "process" if self.processes == 1 else "processes"
        return f"{self.processes} {word}" + (", cut otherwise" if self.otherwise else "")


AS_IT_IS = Packing()
OTHERS = (Packing(otherwise=True), Packing(processes=1))
