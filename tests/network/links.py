"""A link per node: the processes of a node share a network namespace, joined to the others' by a bridge, or by a relay
that delays frames.

The link between nodes is shaped. What ranks of one node send each other goes by the namespace's loopback, which is not.
"""

import ctypes
import os
import subprocess
from multiprocessing.connection import Connection

from relay import Relay, tap
from shaped import shape

CLONE_NEWNET = 0x4000_0000


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


def _call(function: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), function)


def leave(node: int, rate: str, joined: Connection) -> str:
    """Called in the process of a rank: moves it to its node's namespace, and returns the name of the node's link.

    The first rank of the node makes the namespace, in which ``joined`` tells that the link is there, and gives it ``rate``. The others
    hear from ``joined`` whose namespace it is.
    """
    leader = joined.recv()
    if leader is not None:
        with open(f"/proc/{leader}/ns/net") as namespace:
            _call("setns", namespace.fileno(), CLONE_NEWNET)
        return f"e{node}"
    _call("unshare", CLONE_NEWNET)
    joined.send(os.getpid())
    joined.recv()
    _ip("link set lo up")
    _ip(f"address add 10.77.0.{node + 1}/24 dev e{node}")
    _ip(f"link set e{node} up")
    subprocess.run(shape("add", rate, device=f"e{node}"), check=True)
    joined.send(None)
    return f"e{node}"


def join(rates: list[str], nodes: list[list[Connection]], delay: float = 0.0) -> None:
    """Called in the namespace that started the ranks: gives each node a link.

    Without a ``delay``, links meet at a bridge, and nodes receive at their rate. With one, in seconds, links meet at a relay,
    and only what a node sends has its rate.
    """
    if delay > 0:
        devices = [tap(f"e{number}") for number in range(len(nodes))]
        Relay(devices, delay).start()
    else:
        _ip("link add bridge type bridge")
        _ip("link set bridge up")
    for number, (rate, (first, *others)) in enumerate(zip(rates, nodes)):
        first.send(None)
        process = first.recv()
        if delay == 0:
            _ip(f"link add v{number} type veth peer name e{number}")
            _ip(f"link set v{number} master bridge up")
            subprocess.run(shape("add", rate, device=f"v{number}"), check=True)
        _ip(f"link set e{number} netns {process}")
        first.send(None)
        first.recv()
        for other in others:
            other.send(process)


def sent(link: str) -> int:
    """Bytes that have left this process's namespace by a link, headers of packets included."""
    with open("/proc/self/net/dev") as devices:
        counters = next(line.split(":")[1].split() for line in devices if line.split(":")[0].strip() == link)
    return int(counters[8])
