"""Report the network between GPUs of several machines, as the kernel lists it."""

from pathlib import Path

from odc_engine.doctor.finding import Finding

CARDS, LENDS = "InfiniBand", "nvidia_peermem"
NO_CARD = "load its driver, or give the container its devices (/dev/infiniband); NCCL and gloo go over sockets"
NO_LENDER = "modprobe nvidia-peermem, or install NVIDIA's open kernel modules, which lend memory by DMA-BUF"


def examine(root: Path = Path("/")) -> list[Finding]:
    """Where several machines are meant. RoCE and EFA are listed as InfiniBand is."""
    return [_cards(root / "sys/class/infiniband"), _lender(root)]


def _cards(folder: Path) -> Finding:
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    active = [name for name in found if any("ACTIVE" in _text(port) for port in folder.glob(f"{name}/ports/*/state"))]
    if active:
        return Finding("network", CARDS, f"active: {', '.join(active)}", True)
    said = f"no port of {', '.join(found)} is active" if found else "no device"
    return Finding("network", CARDS, f"{said}: nothing carries NVSHMEM's bytes between machines", False, NO_CARD)


def _lender(root: Path) -> Finding:
    if (root / "sys/module/nvidia_peermem").is_dir():
        return Finding("network", LENDS, "loaded: network cards read GPUs' memory", True)
    if "Open Kernel Module" in _text(root / "proc/driver/nvidia/version"):
        return Finding("network", LENDS, "not loaded; the open kernel modules lend GPUs' memory by DMA-BUF", True)
    return Finding("network", LENDS, "not loaded: network cards may not read GPUs' memory", False, NO_LENDER)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
