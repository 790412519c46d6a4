"""The choice of the route of payloads, by the bytes that leave each node."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

import torch.distributed as dist

from lgreco.torch.nodes import Nodes, nodes_of

_LOG = logging.getLogger("lgreco")

_SCATTERED = frozenset({"qsgd", "eden"})
"""Methods whose error grows little when a mean is compressed again."""
_SCATTERED_FROM = 4
"""Smallest number of ranks for scatter-reduce, which compresses twice and saves few bytes with fewer ranks."""


class Route(NamedTuple):
    """How payloads travel."""

    name: str
    """``"all_gather"``, ``"scatter_reduce"`` or ``"two_level"``."""
    between: str
    """The route of payloads between nodes: ``"all_gather"`` or ``"scatter_reduce"``."""


def payloads_per_link(route: Route, nodes: int, per_node: int) -> float:
    """Bytes that leave each node per step, in multiples of one rank's payloads, in a ring that visits one node after another.

    Without nodes of several ranks, ``per_node`` is 1. Values that the network sums, such as PowerSGD's, are not counted.
    """
    ranks = nodes if route.name == "two_level" else nodes * per_node
    if nodes == 1:
        return 0.0
    if route.between == "all_gather":
        return float(ranks - 1)
    if route.name == "two_level":
        return 2.0 * (nodes - 1) / nodes
    # Each rank sends every other rank its part, and then gathers the means of all parts.
    return per_node * (ranks - per_node) / ranks + (ranks - 1) / ranks


def choose(nodes: int, per_node: int, methods: frozenset[str], on_host: bool) -> Route:
    """The route that sends the fewest bytes between nodes, among routes with nearly the same error.

    Scatter-reduce compresses means again, which adds little error under QSGD and EDEN. Scatter-reduce works only on the
    host.
    """
    routes = [Route("all_gather", "all_gather")]
    if per_node > 1:
        routes.append(Route("two_level", "all_gather"))
    if on_host and methods and methods <= _SCATTERED:
        if per_node > 1 and nodes >= _SCATTERED_FROM:
            routes.append(Route("two_level", "scatter_reduce"))
        if nodes * per_node >= _SCATTERED_FROM:
            routes.append(Route("scatter_reduce", "scatter_reduce"))
    return min(routes, key=lambda route: payloads_per_link(route, nodes, per_node))


def described(route: Route, nodes: int, per_node: int) -> str:
    """Describes the chosen route for the log."""
    words = {"all_gather": "all-gather", "scatter_reduce": "scatter-reduce"}
    how = words.get(route.name) or f"two-level, with {words[route.between]} between nodes"
    place = f"{nodes} nodes of {per_node} ranks" if per_node > 1 else f"{nodes} ranks"
    sent, most = (payloads_per_link(of, nodes, per_node) for of in (route, Route("all_gather", "all_gather")))
    link = "node" if per_node > 1 else "rank"
    text = f"route: {how}, over {place}; payloads that leave each {link} per step: {sent:.3g}"
    if route.name != "all_gather":
        text += f", by all-gather {most:.3g}"
    return f"{text}; fix it by route=\"{route.name}\""


def methods_of(method: object, settings: object) -> frozenset[str]:
    """The names of the methods that make the payloads."""
    if isinstance(settings, Mapping):
        words = (str(setting).partition(" ")[0] for setting in settings.values())
        return frozenset(word for word in words if word != "dense")
    return frozenset(name.strip() for name in str(method or "hybrid").split(","))


def routed_over(
    own: dist.ProcessGroup,
    given: str | None,
    node_group: dist.ProcessGroup | None,
    methods: frozenset[str],
    may_two_levels: bool,
    on_gpu: bool,
    uncompressed: bool,
) -> tuple[Nodes | None, str]:
    """The nodes if gradients are averaged in two levels, else None; and the route of payloads, between nodes or between all
    ranks."""
    # PowerSGD alone does not use two levels by default. Rings that sum its factors cross each link once anyway, and with two
    # levels each shard would have factors of its own.
    may_two_levels = may_two_levels and (given is not None or methods != {"powersgd"})
    nodes = nodes_of(own, given, may_two_levels, on_gpu, node_group)
    if given not in (None, "two_level"):
        return None, given
    if uncompressed:
        return None, "all_gather"
    count, per_node = (own.size(), 1) if nodes is None else (len(nodes), len(nodes[0]))
    may = may_two_levels or nodes is None
    route = choose(count, per_node, methods, not on_gpu) if may else Route("all_gather", "all_gather")
    if given is None and own.rank() == 0 and count * per_node > 1:
        _LOG.info("%s", described(route, count, per_node))
    if nodes is None or route.name != "two_level":
        return None, route.between
    return Nodes(nodes, own), route.between
