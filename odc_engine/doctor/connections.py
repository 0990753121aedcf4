"""Report what connects this machine's GPUs: links between them, and network cards to those of other machines."""

from pathlib import Path

from odc_engine.backends.links import SLOTS, link, seen
from odc_engine.doctor.finding import Finding

REACH, ADD = "peer access", "native atomics"
CARDS, LENDS = "InfiniBand", "nvidia_peermem"
NO_REACH = "cuda_ipc needs it: see 'nvidia-smi topo -p2p rw', or use NCCL (--backend torch --device cuda)"
NO_CARD = "load its driver, or give the container its devices (/dev/infiniband); NCCL and gloo go over sockets"
NO_LENDER = "modprobe nvidia-peermem, or install NVIDIA's open kernel modules, which lend memory by DMA-BUF"


def between_gpus(gpus: int) -> list[Finding]:
    """As `backends/links.py` asks it when arenas are made. A single GPU has no link.

    Reach that nobody says is found out where memory is mapped; sums are not risked.
    """
    if gpus < 2:
        return []
    placed = [seen(number) for number in range(gpus)]
    ways = {(a, b): link(placed[a], placed[b]) for a in range(gpus) for b in range(gpus) if a != b}
    reach, add = ({pair: getattr(way, does) for pair, way in ways.items()} for does in ("reaches", "adds"))
    return [_links(REACH, reach, NO_REACH, True), _links(ADD, add, f"sums would be lost: {SLOTS}", False)]


def _links(name: str, ways: dict[tuple[int, int], bool | None], fix: str, unknown_ok: bool) -> Finding:
    lack = [pair for pair, does in ways.items() if does is False]
    unknown = [pair for pair, does in ways.items() if does is None]
    if lack:
        a, b = lack[0]
        return Finding("link", name, f"{len(lack)} of {len(ways)} ways lack it, first GPU {a} to {b}", False, fix)
    if unknown:
        said = f"nobody says it of {len(unknown)} of {len(ways)} ways"
        return Finding("link", name, said, unknown_ok, "" if unknown_ok else f"cuda-bindings would, {SLOTS}")
    return Finding("link", name, f"between all GPUs, {len(ways)} ways", True)


def between_machines(root: Path = Path("/")) -> list[Finding]:
    """As the kernel lists it. RoCE and EFA are listed as InfiniBand is."""
    folder = root / "sys/class/infiniband"
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    active = [name for name in found if any("ACTIVE" in _text(port) for port in folder.glob(f"{name}/ports/*/state"))]
    if active:
        cards = Finding("network", CARDS, f"active: {', '.join(active)}", True)
    else:
        said = f"no port of {', '.join(found)} is active" if found else "no device"
        cards = Finding("network", CARDS, f"{said}: nothing carries NVSHMEM's bytes between machines", False, NO_CARD)
    if (root / "sys/module/nvidia_peermem").is_dir():
        lends = Finding("network", LENDS, "loaded: network cards read GPUs' memory", True)
    elif "Open Kernel Module" in _text(root / "proc/driver/nvidia/version"):
        lends = Finding("network", LENDS, "not loaded; the open kernel modules lend GPUs' memory by DMA-BUF", True)
    else:
        lends = Finding("network", LENDS, "not loaded: network cards may not read GPUs' memory", False, NO_LENDER)
    return [cards, lends]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
