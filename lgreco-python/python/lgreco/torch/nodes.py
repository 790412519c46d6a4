"""Finds the ranks that share a node, and makes the groups for training by two levels."""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch.distributed as dist

from lgreco._lgreco import LgrecoError, Request
from lgreco.torch.groups import meeting, part_of, release_with


class Nodes:
    """The nodes of a process group, and this rank's groups inside and between nodes. All ranks must make a ``Nodes``
    together."""

    def __init__(self, nodes: Sequence[Sequence[int]], group: dist.ProcessGroup) -> None:
        """``nodes`` has the ranks of each node, numbered among all processes."""
        self.ranks = [list(node) for node in nodes]
        self.by_local_rank = [list(peers) for peers in zip(*self.ranks)]
        """The ranks of each group of peers."""
        self.node = part_of(self.ranks, group)
        self.peers = part_of(self.by_local_rank, group)
        self.place = [self.peers.size(), self.peers.rank(), self.node.size(), self.node.rank()]
        """The number of nodes, this rank's node, the number of ranks per node, and this rank's local rank."""
        self._releases: list[Callable[[], object]] = []

    def release_with(self, owner: object) -> None:
        """Releases the groups when the owner is freed."""
        self._releases = [release_with(owner, self.node), release_with(owner, self.peers)]

    def leave(self) -> None:
        """Closes this rank's connections, so that ranks that wait for it get an error at once."""
        for release in self._releases:
            release()
        del self.node, self.peers

    def group(self, request: Request) -> dist.ProcessGroup:
        """The group that performs a collective."""
        if not hasattr(self, "node"):
            raise RuntimeError("this rank has left its groups after a lack of memory: make a new state, in a new process group")
        return self.node if request.group == "node" else self.peers


class _Told(NamedTuple):
    """A rank's statement about its node, for the other ranks."""

    choice: tuple[str | None, bool, bool]
    """The rank's ``route`` option, whether the rank may average in two levels, and whether its gradients stay on a GPU."""
    mates: list[int] | None
    """The ranks of the node group that the user has given."""
    local_size: str | None
    """LOCAL_WORLD_SIZE, which torchrun sets."""


def nodes_of(
    group: dist.ProcessGroup, route: str | None, may: bool, on_gpu: bool, node_group: dist.ProcessGroup | None
) -> list[list[int]] | None:
    """Returns the ranks of each node, the same on all ranks. Returns None if there is only one node, if nodes have only one
    rank, or if their sizes differ. Also returns None if ranks differ in ``route``, ``may`` or ``on_gpu``; ``agree`` then
    names the difference.

    ``may`` says whether this rank can average in two levels. Nodes are the node groups that the user gives, or else blocks of
    LOCAL_WORLD_SIZE ranks, as torchrun numbers them.

    Raises LgrecoError on all ranks for node groups that are not nodes of equal size, and if ``route`` needs nodes.
    """
    mates = None if node_group is None else dist.get_process_group_ranks(node_group)
    told = _Told((route, may, on_gpu), mates, os.environ.get("LOCAL_WORLD_SIZE"))
    every: list[_Told] = [told] * group.size()
    with meeting(group):
        dist.all_gather_object(every, told, group=group)
    if any(other.choice != told.choice for other in every):
        return None
    ranks = dist.get_process_group_ranks(group)
    nodes: list[list[int]] | None
    if any(told.mates is not None for told in every):
        nodes = _given(ranks, [told.mates for told in every])
    else:
        nodes = _counted(ranks, [told.local_size for told in every])
    if nodes is None and route == "two_level" and may:
        sizes = sorted({told.local_size or "not set" for told in every})
        raise LgrecoError(
            f"route is 'two_level', and LOCAL_WORLD_SIZE is {', '.join(sizes)} among {len(ranks)} ranks: it needs at least two nodes "
            "with the same number of ranks, at least two; start the ranks by torchrun, or pass node_group, the group of this node's ranks"
        )
    return nodes


def _given(ranks: list[int], mates: list[list[int] | None]) -> list[list[int]]:
    """Derives the nodes from the node groups that users have given."""
    nodes: list[list[int]] = []
    for rank, group in zip(ranks, mates):
        if group is None:
            raise LgrecoError(f"node_group is left out on rank {rank}: pass the group of its node's ranks on every rank")
        if rank not in group or not set(group) <= set(ranks):
            raise LgrecoError(f"node_group has ranks {group} on rank {rank}, expected that rank and others of {ranks}")
        if sorted(group) not in nodes:
            nodes.append(sorted(group))
    if sum(map(len, nodes)) != len(ranks):
        raise LgrecoError(f"node groups have ranks {nodes}: each of ranks {ranks} must be in exactly one group")
    if len({len(node) for node in nodes}) != 1:
        raise LgrecoError(f"node groups have ranks {nodes}, expected the same number of ranks on each node")
    if len(nodes) < 2 or len(nodes[0]) < 2:
        raise LgrecoError(f"node groups have ranks {nodes}, expected at least two nodes with at least two ranks: leave node_group out")
    return nodes


def _counted(ranks: list[int], sizes: list[str | None]) -> list[list[int]] | None:
    """The nodes that torchrun has started."""
    size = sizes[0] or ""
    if any(other != size for other in sizes) or not size.isdecimal() or int(size) < 2:
        return None
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(rank // int(size), []).append(rank)
    nodes = list(by_node.values())
    is_even = len({len(node) for node in nodes}) == 1 and len(nodes[0]) > 1
    return nodes if len(nodes) > 1 and is_even else None
