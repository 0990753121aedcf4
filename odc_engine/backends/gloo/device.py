"""A processor whose collectives are gloo's: FSDP2's, as they come. On one machine.

A rival over another transport: what it loses against on-demand is the transport's doing as much as the meetings'.
"""

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from odc_engine.backends.base import Collectives, Host


class GlooDevice(Collectives):
    """`host`: the same devices as processes, whose group it is."""

    def __init__(self, host: Host) -> None:
        self.host, self.rank, self.size, self.group = host, host.rank, host.size, host.group

    @property
    def mesh(self) -> DeviceMesh:
        return init_device_mesh(self.device.type, (self.size,))

    def finish(self) -> None:
        """All is done when it is given."""

    def meet(self, room: int) -> None:
        self.host.meet(room)

    def close(self) -> None:
        self.host.close()
