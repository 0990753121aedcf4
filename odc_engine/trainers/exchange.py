"""Samples that were made on one device and are run on another."""

import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


def all_told(own: Any) -> list[Any]:
    """What every device says, in the order of devices."""
    if not dist.is_initialized():
        return [own]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return every


def swapped(parcels: Sequence[Any], device: torch.device) -> list[Any]:
    """What every device had for this one, whose `parcels` are one for each device."""
    if len(parcels) == 1:
        return [*parcels]
    packed = [torch.frombuffer(bytearray(pickle.dumps(parcel)), dtype=torch.uint8) for parcel in parcels]
    sizes = torch.tensor([len(one) for one in packed], device=device)
    theirs = torch.empty_like(sizes)
    dist.all_to_all_single(theirs, sizes)
    counts = theirs.tolist()
    arrived = torch.empty(sum(counts), dtype=torch.uint8, device=device)
    dist.all_to_all_single(arrived, torch.cat(packed).to(device), counts, sizes.tolist())
    return [pickle.loads(one.numpy().tobytes()) for one in torch.split(arrived.cpu(), counts)]
