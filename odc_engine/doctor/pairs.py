"""Report what the links between this machine's GPUs support, as `backends/links.py` asks it when arenas are made."""

from odc_engine.backends.links import SLOTS, link, seen
from odc_engine.doctor.finding import Finding

REACH, ADD = "peer access", "native atomics"


def examine(gpus: int) -> list[Finding]:
    """Nothing of a single GPU, which has no link. Reach that nobody says is found out where memory is mapped; sums are
    not risked."""
    if gpus < 2:
        return []
    placed = [seen(number) for number in range(gpus)]
    pairs = [(a, b) for a in range(gpus) for b in range(gpus) if a != b]
    ways = {pair: link(placed[pair[0]], placed[pair[1]]) for pair in pairs}
    reach = "cuda_ipc needs it: see 'nvidia-smi topo -p2p rw', or use NCCL (--backend torch --device cuda)"
    return [
        _finding(REACH, {pair: way.reaches for pair, way in ways.items()}, reach, suffices=True),
        _finding(ADD, {pair: way.adds for pair, way in ways.items()}, f"sums would be lost: {SLOTS}", suffices=False),
    ]


def _finding(name: str, ways: dict[tuple[int, int], bool | None], fix: str, *, suffices: bool) -> Finding:
    """`suffices`: where nobody says, it may be there."""
    lack = [pair for pair, does in ways.items() if does is False]
    unknown = [pair for pair, does in ways.items() if does is None]
    if lack:
        a, b = lack[0]
        return Finding("link", name, f"{len(lack)} of {len(ways)} ways lack it, first GPU {a} to {b}", False, fix)
    if unknown:
        said = f"nobody says it of {len(unknown)} of {len(ways)} ways"
        return Finding("link", name, said, suffices, "" if suffices else f"cuda-bindings would, {SLOTS}")
    return Finding("link", name, f"between all GPUs, {len(ways)} ways", True)
