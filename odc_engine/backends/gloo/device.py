"""FSDP2's own collectives over gloo, on the CPUs of one machine.

It uses another transport than on-demand, so that a difference in time may come from the transport.
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
        """Do nothing: a collective is done when it returns."""

    def meet(self, room: int) -> None:
        self.host.meet(room)

    def close(self) -> None:
        self.host.close()
