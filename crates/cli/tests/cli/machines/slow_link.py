"""A link between two network namespaces that delays packets and limits their rate, for kernels without netem.

`slow_link.py NAMESPACE INTERFACE NAMESPACE INTERFACE MILLISECONDS BYTES_PER_SECOND` makes a TUN interface in each namespace and
passes packets between them until it is killed. It writes a line once both exist.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN_WITHOUT_HEADER = 0x1001
#: Packets that wait in each direction; others are dropped, as by a switch.
WAITING = 1000
PACKET = 65536


def interface(namespace: str, name: str) -> int:
    """Opens a new TUN interface in a namespace, which this process enters."""
    with open(f"/var/run/netns/{namespace}") as place:
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"could not enter {namespace}")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_WITHOUT_HEADER))
    return tun


def main() -> None:
    """Passes packets until the process is killed."""
    first, second = interface(*sys.argv[1:3]), interface(*sys.argv[3:5])
    delay, rate = float(sys.argv[5]) / 1e3, float(sys.argv[6])
    other = {first: second, second: first}
    #: Packets on their way to an interface with their times of arrival, and the time at which its line is free.
    waiting = {end: collections.deque() for end in other}
    free = dict.fromkeys(other, 0.0)
    print("ready", flush=True)
    while True:
        due = min((queue[0][0] for queue in waiting.values() if queue), default=None)
        timeout = None if due is None else max(0.0, due - time.monotonic())
        for end in select.select(list(other), [], [], timeout)[0]:
            packet, to = os.read(end, PACKET), other[end]
            if len(waiting[to]) < WAITING:
                free[to] = max(free[to], time.monotonic()) + len(packet) / rate
                waiting[to].append((free[to] + delay, packet))
        for end, queue in waiting.items():
            while queue and queue[0][0] <= time.monotonic():
                with contextlib.suppress(OSError):  # The interface is down.
                    os.write(end, queue.popleft()[1])


main()
