"""A switch that delays frames between nodes. The switch replaces tc's netem, which the kernel may lack.

Each node's link is a TAP device in the node's namespace. This process reads the frames that leave the nodes, holds each
for the delay, and writes it to the device of its receiver. No frame is lost or reordered.
"""

import collections
import errno
import fcntl
import os
import select
import struct
import threading
import time

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_LONGEST = 65_550  # largest number of bytes of a frame


def tap(name: str) -> int:
    """Makes a TAP device in this namespace, and returns its descriptor. The device may be moved to another namespace."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADER))
    return device


class Relay(threading.Thread):
    """Passes frames between devices until a node's namespace is gone. Each frame arrives ``delay`` seconds after it has
    left its node."""

    def __init__(self, devices: list[int], delay: float) -> None:
        super().__init__(daemon=True)
        self._devices, self._delay = devices, delay
        self._flying: collections.deque[tuple[float, int, bytes]] = collections.deque()
        self._owners: dict[bytes, int] = {}
        """The device of each hardware address that has sent a frame."""

    def run(self) -> None:
        try:
            self._pass_frames()
        except OSError as error:
            if error.errno != errno.EBADFD:
                raise

    def _pass_frames(self) -> None:
        while True:
            wait = max(self._flying[0][0] - time.perf_counter(), 0.0) if self._flying else None
            ready, _, _ = select.select(self._devices, [], [], wait)
            for device in ready:
                self._take(device)
            while self._flying and self._flying[0][0] <= time.perf_counter():
                self._deliver(*self._flying.popleft()[1:])

    def _take(self, device: int) -> None:
        """Takes one frame, so that each device has its turn."""
        frame = os.read(device, _LONGEST)
        self._owners[frame[6:12]] = device
        self._flying.append((time.perf_counter() + self._delay, device, frame))

    def _deliver(self, sender: int, frame: bytes) -> None:
        """Writes a frame to its receiver, or to all other nodes if the receiver is unknown, as a switch does."""
        owner = self._owners.get(frame[:6])
        for device in self._devices if owner is None else [owner]:
            if device == sender:
                continue
            try:
                os.write(device, frame)
            except OSError as error:
                # The device refuses frames until the node's link is up.
                if error.errno != errno.EIO:
                    raise
