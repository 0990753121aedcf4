"""Several machines on this one: each has its own network, pids, /dev/shm, name and boot id, and hangs on one switch.

So nothing has to be pretended to what runs there: neither addresses nor pids nor shared memory reach another machine,
and all that there is between them is TCP over a cable that can be pulled out. They are Linux namespaces without names,
made by root, or by anybody else where the kernel lets users be root in a namespace of their own. Each lives as long as
its first process, which waits for the end of a pipe: when whoever made it ends, however that may be, all is gone.

    python tests/helpers/machines.py        # makes two, or says why it cannot
"""

import ctypes
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NETWORK, NAME = "10.77.0", "machine"  # and a number behind it
CARD = "eth0"  # each machine's, beside lo
KINDS = ("user", "net", "uts", "ipc", "pid", "mnt")
PARENT_DEATH_SIGNAL = 1  # of prctl
SECONDS = 20.0  # for a command

# A shell's own pid, as seen from outside, is in /proc as long as that is the outside's.
SWITCH = """
set -e
read pid rest < /proc/self/stat
ip link add name switch type bridge
ip link set switch up
echo "$pid"
exec cat
"""
MACHINE = """
set -e
read pid rest < /proc/self/stat
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
put() { cat > /dev/shm/own; mount --bind /dev/shm/own "$1"; rm /dev/shm/own; }
echo "$2" | put /proc/sys/kernel/random/boot_id
echo "$3" | put /etc/hosts
hostname "$1"
ip link set lo up
echo "$pid"
exec cat
"""


class NoMachines(Exception):
    """They cannot be made here."""


@dataclass(frozen=True, slots=True)
class Machine:
    number: int
    pid: int  # of its first process, as seen from outside; all others end with it
    address: str

    def enter(self) -> None:
        """The calling process goes on there, as a child of what was called, which ends as it does."""
        where = Path.cwd()
        libc = ctypes.CDLL(None, use_errno=True)
        pairs = [(Path(f"/proc/{self.pid}/ns/{kind}"), Path(f"/proc/self/ns/{kind}")) for kind in KINDS]
        others = [its for its, own in pairs if its.readlink() != own.readlink()]  # where the caller is not yet
        for fd in [os.open(path, os.O_RDONLY) for path in others]:
            if libc.setns(fd, 0):
                raise OSError(ctypes.get_errno(), "setns")
            os.close(fd)
        os.chdir(where)
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                os.kill(os.getpid(), os.WTERMSIG(status))
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)

    def pids(self) -> list[int]:
        """Of all that runs there, as seen from outside, but for the first process."""
        space, found = Path(f"/proc/{self.pid}/ns/pid").readlink(), []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                found += [int(folder.name)] if (folder / "ns" / "pid").readlink() == space else []
        return [pid for pid in found if pid != self.pid]

    def shared(self) -> list[Path]:
        """Files in its /dev/shm; none once it is gone."""
        return list(Path(f"/proc/{self.pid}", "root", "dev", "shm").glob("*"))

    def kill(self) -> None:
        """Its power is cut: every process ends at once."""
        os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Every process stands still, and its kernel still answers."""
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP)


class Machines:
    """A context: so many machines, with cards at one switch."""

    def __init__(self, count: int) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self.machines: list[Machine] = []
        lines = ["127.0.0.1 localhost", *(f"{_address(number)} {NAME}{number}" for number in range(count))]
        self._hosts = "\n".join(lines)
        try:
            self._switch = self._first(SWITCH, [*_user(), "--net"])
            for number in range(count):
                self.machines.append(self._machine(number))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Machines":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _machine(self, number: int) -> Machine:
        own = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        told = NAME + str(number), str(uuid.uuid4()), self._hosts
        pid = self._first(MACHINE, own, self._in(self._switch, "user"), *told)
        at_switch = self._in(self._switch, "net")
        cable = ["type", "veth", "peer", "name", CARD, "netns", str(pid)]
        _run([*at_switch, "ip", "link", "add", "name", f"cable{number}", *cable])
        _run([*at_switch, "ip", "link", "set", f"cable{number}", "master", "switch", "up"])
        address, there = _address(number), self._in(pid, "net")
        _run([*there, "ip", "address", "add", f"{address}/24", "dev", CARD])
        _run([*there, "ip", "link", "set", CARD, "up"])
        return Machine(number, pid, address)

    def _first(self, script: str, own: Sequence[str], where: Sequence[str] = (), *arguments: str) -> int:
        """Start the process that a namespace lives with. Its pid."""
        command = [*where, "unshare", *own, "sh", "-c", script, "sh", *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stderr is not None
        if not (told := process.stdout.readline().strip()):
            raise NoMachines(" ".join(process.stderr.read().split()) or "unshare says nothing")
        return int(told)

    def _in(self, pid: int, kind: str) -> list[str]:
        """What runs a command in another process's namespace."""
        of_user = ["--user", "--preserve-credentials"] if _user() else []
        if kind == "user":
            return ["nsenter", "--target", str(pid), *of_user] if of_user else []
        return ["nsenter", "--target", str(pid), *of_user, f"--{kind}"]

    def unplug(self, number: int) -> None:
        """Pull a machine's cable out of the switch: its card sees a cable, and whatever is sent is lost."""
        _run([*self._in(self._switch, "net"), "ip", "link", "set", f"cable{number}", "nomaster"])

    def plug(self, number: int) -> None:
        _run([*self._in(self._switch, "net"), "ip", "link", "set", f"cable{number}", "master", "switch"])

    def command(self, number: int, *command: str) -> list[str]:
        """What runs a command there, as a child of its first process's."""
        spaces = ["--net", "--mount", "--uts", "--ipc", "--pid"]
        of_user = ["--user", "--preserve-credentials"] if _user() else []
        where = ["nsenter", "--target", str(self.machines[number].pid), *of_user, *spaces, f"--wd={Path.cwd()}"]
        return [*where, *command]

    def close(self) -> None:
        for machine in self.machines:
            with suppress(ProcessLookupError):  # it was killed before
                machine.kill()
        for process in self._processes:
            process.communicate()  # the end of its pipe is the end of what is left
        self._processes.clear()
        self.machines.clear()


def _address(number: int) -> str:
    return f"{NETWORK}.{number + 1}"


def _user() -> list[str]:
    """Whoever is not root becomes it in a namespace."""
    return ["--user", "--map-root-user"] if os.geteuid() else []


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise NoMachines(f"{' '.join(command)}: {' '.join(done.stderr.split())}")


def hindrance() -> str:
    """Why there can be no machines here; nothing where there can."""
    try:
        with Machines(2):
            return ""
    except (NoMachines, OSError) as error:
        return f"no two machines can be made on this one: {error}; {WAY_OUT}"


WAY_OUT = (
    "needs Linux with iproute2 and util-linux, and root with CAP_SYS_ADMIN or user namespaces "
    "(docker run --privileged; sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
)

if __name__ == "__main__":
    sys.exit(hindrance() or 0)
