"""A matrix multiplication with a transfer beside it: by programs on SMs, many or few, and by the copy engine; each from
a stream of the same priority, and from one of a higher one. How much longer either takes says what may hide what."""

from collections.abc import Callable
from typing import Any

from odc_engine.doctor.probes.base import CPU, OK, Answer, Hearing
from odc_engine.doctor.probes.together import Work, ends

SIDE, SMALL = 8192, 192
MB = 1 << 20
MOVED, DEVICES = 256 * MB, 4
ROUNDS = 3
GEMMS, MOVES = 6, 40


def probe(hearing: Hearing) -> Answer:
    gemm = _gemm(hearing)
    usual, high = _streams(hearing)
    alone = _best([usual], [(gemm, GEMMS)])[0]
    hearing.note(gemms=GEMMS, moves=MOVES, bytes=hearing.size(MOVED, MB), gemms_alone=alone)
    told = []
    for name, move in _moves(hearing).items():
        by_itself = _best([high], [(move, MOVES)])[0]
        found: dict[str, Any] = {"moves_alone": by_itself}
        for priority, stream in (("same priority", _another(hearing)), ("higher priority", high)):
            gemms, moves = _best([usual, stream], [(gemm, GEMMS), (move, MOVES)])
            found[priority] = {"gemms": gemms / alone, "moves": moves / by_itself, "both": max(gemms, moves)}
        # One after the other would take the sum; side by side at no cost the longer of the two.
        found["hidden"] = _hidden(alone, by_itself, found["higher priority"]["both"])
        hearing.note(**{name: found})
        told.append(f"{name} {found['hidden']:.0%} hidden, gemm x{found['higher priority']['gemms']:.2f}")
    hearing.note(copies=_counts())
    return Answer(OK, "at a higher priority: " + "; ".join(told))


def _counts() -> dict[str, int]:
    """Which way the engine's copies went, a batch of the driver's or one by one."""
    from odc_engine.kernels import copies

    return copies.counts()


def _hidden(gemms: float, moves: float, both: float) -> float:
    """Share of the shorter of the two that lies beside the other."""
    return (gemms + moves - both) / min(gemms, moves)


def _best(streams: list[Any], works: list[tuple[Work, int]]) -> list[float]:
    return min((ends(streams, works) for _ in range(ROUNDS)), key=max)


def _gemm(hearing: Hearing) -> Work:
    import torch

    side = hearing.size(SIDE, SMALL)
    kind = hearing.size(torch.bfloat16, torch.float32)
    one, other = torch.randn(2, side, side, device=hearing.device, dtype=kind)
    out = torch.empty_like(one)
    return lambda: torch.mm(one, other, out=out)


def _moves(hearing: Hearing) -> dict[str, Work]:
    """Ways to gather as much, as the engine does it: of them a CPU has the copies alone."""
    import torch

    from odc_engine.kernels import copies

    n = hearing.size(MOVED, MB) // 4 // DEVICES
    spare = torch.empty(DEVICES * n, device=hearing.device)
    arenas = list(torch.randn(DEVICES, n, device=hearing.device))
    parts = copies.Parts(arenas, elsewhere=range(DEVICES))  # as if of other GPUs, whose copies have the hint
    ways: dict[str, Work] = {"copy engine": lambda: parts.collect(spare)}
    if hearing.device == CPU:
        return ways
    from odc_engine.kernels import transfers

    hearing.note(one_batch=copies.batches())
    place = transfers.Shards(transfers.table([arena.data_ptr() for arena in arenas], "cuda"), 0, 0, n)

    def gather(launch: transfers.Launch) -> Callable[[], object]:
        def move() -> object:
            transfers.gather(place, spare, torch.float32, launch)
            return arenas  # known to kernels by address alone, so somebody has to keep them

        return move

    for launch in (transfers.ALONE, transfers.USUAL):
        ways[f"{launch.programs} programs"] = gather(launch)
    return ways


def _streams(hearing: Hearing) -> tuple[Any, Any]:
    """For compute, and one whose work the GPU prefers."""
    if hearing.stands_in:
        return None, None
    import torch

    stream: Any = torch.cuda.Stream  # torch has no types for it
    return stream(), stream(priority=-1)


def _another(hearing: Hearing) -> Any:
    return _streams(hearing)[0]
