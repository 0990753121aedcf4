#!/bin/bash
# Several machines on one, to try out what is to run on many: a command on each, and a network between them.
#   docs/launch/machines.sh 2 torchrun --nproc-per-node 2 train.py
# They are Linux namespaces, with an address, pids and /dev/shm of their own; nothing is left of them afterwards. Needs
# iproute2, and root or a kernel that lets users be root in a namespace of their own. torchrun reads PET_*.
set -euo pipefail

if [ -z "${MACHINES-}" ]; then
    export MACHINES=${1:?say how many machines, then a command}
    own=(--net --mount --pid --fork --kill-child --mount-proc)
    [ "$(id -u)" = 0 ] || own+=(--user --map-root-user)
    exec unshare "${own[@]}" bash "$0" "${@:2}"
fi

export PET_NNODES=$MACHINES PET_MASTER_ADDR=10.77.0.1 PET_MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0
mount -t tmpfs tmpfs /run
for ((i = 0; i < MACHINES; i++)); do echo "10.77.0.$((i + 1)) machine$i"; done > /run/hosts
echo 127.0.0.1 localhost >> /run/hosts
mount --bind /run/hosts /etc/hosts
ip link add name switch type bridge
ip link set switch up

machine() {
    hostname "machine$PET_NODE_RANK"
    mount -t tmpfs tmpfs /dev/shm
    ip link set lo up
    until [ "$(cat /sys/class/net/eth0/operstate 2> /dev/null)" = up ]; do sleep 0.02; done
    exec "$@"
}
export -f machine

started=()
for ((i = 0; i < MACHINES; i++)); do
    PET_NODE_RANK=$i unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc \
        bash -c 'mount -t sysfs sysfs /sys && machine "$@"' bash "$@" &
    started+=("$!")
    while [ "$(readlink "/proc/$!/ns/net")" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
    ip link add name "cable$i" type veth peer name eth0 netns "$!"
    ip link set "cable$i" master switch up
    nsenter --target "$!" --net ip address add "10.77.0.$((i + 1))/24" dev eth0
    nsenter --target "$!" --net ip link set eth0 up
done
code=0
for pid in "${started[@]}"; do wait "$pid" || code=$?; done
exit "$code"
