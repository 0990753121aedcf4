"""FSDP2 as on a GPU that is not here: its own code gives work to fake streams, and so does the engine's."""

from contextlib import contextmanager

import fake_cuda
import pytest
import torch

from odc_engine.places import streams
from odc_engine.places.place import Processor
from odc_engine.places.streams import StreamLane

ASKED = ("Stream", "Event", "current_stream", "stream")  # of a kind of device, by FSDP2


@contextmanager
def on_streams():
    """Models that are sharded inside take the CPU for a GPU as far as streams go."""
    fake = fake_cuda.FakeCuda()
    with pytest.MonkeyPatch.context() as patch:
        for name in ASKED:
            patch.setattr(torch.cpu, name, getattr(fake, name))
        patch.setattr(torch.accelerator, "current_stream", fake_cuda.current)
        patch.setattr(streams, "_cuda", fake)
        patch.setattr(Processor, "lane", lambda *_: StreamLane(torch.device("cuda")))
        yield
