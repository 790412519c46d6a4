"""A link per rank: each rank's process has its own network namespace, and a bridge connects them."""

import ctypes
import os
import subprocess
from multiprocessing.connection import Connection

from shaped import shape

CLONE_NEWNET = 0x4000_0000


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


def leave(rank: int, rate: str, joined: Connection) -> str:
    """To be called in a rank's process: moves it to its own namespace, and returns the name of its link.

    ``joined`` tells when the link exists. The rank sends at ``rate``.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    joined.send(os.getpid())
    joined.recv()
    _ip("link set lo up")
    _ip(f"address add 10.77.0.{rank + 1}/24 dev e{rank}")
    _ip(f"link set e{rank} up")
    subprocess.run(shape("add", rate, device=f"e{rank}"), check=True)
    return f"e{rank}"


def join(rates: list[str], ranks: list[Connection]) -> None:
    """To be called in the parent's namespace: gives each rank a link to the bridge, on which it receives at its
    rate."""
    _ip("link add bridge type bridge")
    _ip("link set bridge up")
    for number, (rate, rank) in enumerate(zip(rates, ranks)):
        process = rank.recv()
        _ip(f"link add v{number} type veth peer name e{number}")
        _ip(f"link set e{number} netns {process}")
        _ip(f"link set v{number} master bridge up")
        subprocess.run(shape("add", rate, device=f"v{number}"), check=True)
        rank.send(None)
