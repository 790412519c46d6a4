"""Gives each node its own link. The ranks of a node share a network namespace. Either a bridge joins the namespaces, or
a relay that delays frames.

The links between nodes have a limited rate. Messages within a node use the namespace's loopback, which has no limit.
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
    """Called in a rank's process: moves the process to the node's namespace, and returns the name of the node's link.

    The first rank of a node makes the namespace. After ``joined`` reports that the link exists, the first rank sets the
    link's ``rate``. The node's other ranks receive from ``joined`` the process that made their namespace.
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

    Without a ``delay``, a bridge joins the links, and the rate limits sending and receiving. With a ``delay`` in
    seconds, a relay joins the links, and the rate limits only sending.
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
    """Number of bytes that this process's namespace has sent over a link, including packet headers."""
    with open("/proc/self/net/dev") as devices:
        counters = next(line.split(":")[1].split() for line in devices if line.split(":")[0].strip() == link)
    return int(counters[8])
