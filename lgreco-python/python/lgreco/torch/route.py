"""The choice of the route of payloads, by the bytes that leave each node."""

from typing import NamedTuple

_SCATTERED = frozenset({"qsgd", "eden"})
"""Methods that lose little when a mean is compressed again."""
_SCATTERED_FROM = 4
"""With fewer ranks, scatter-reduce would save few bytes, and compress twice."""


class Route(NamedTuple):
    """How payloads travel."""

    name: str
    """``"all_gather"``, ``"scatter_reduce"`` or ``"two_level"``."""
    between: str
    """The same for payloads between nodes: ``"all_gather"`` or ``"scatter_reduce"``."""


def payloads_per_link(route: Route, nodes: int, per_node: int) -> float:
    """How many times the bytes of one rank's payloads leave each node per step, in a ring that passes node by node.

    ``per_node`` is 1 without nodes of several ranks. Values that the network sums, such as PowerSGD's, do not count.
    """
    ranks = nodes if route.name == "two_level" else nodes * per_node
    if nodes == 1:
        return 0.0
    if route.between == "all_gather":
        return float(ranks - 1)
    if route.name == "two_level":
        return 2.0 * (nodes - 1) / nodes
    # Each rank sends the others their parts, and gathers their means.
    return per_node * (ranks - per_node) / ranks + (ranks - 1) / ranks


def choose(nodes: int, per_node: int, methods: frozenset[str], on_host: bool) -> Route:
    """The route that sends the fewest bytes between nodes, among those with nearly the same error.

    Only all-gather works on a GPU. Scatter-reduce compresses means again, which adds little error under QSGD and EDEN.
    """
    routes = [Route("all_gather", "all_gather")]
    if on_host:
        is_scattered = bool(methods) and methods <= _SCATTERED
        if per_node > 1:
            routes.append(Route("two_level", "all_gather"))
            if is_scattered and nodes >= _SCATTERED_FROM:
                routes.append(Route("two_level", "scatter_reduce"))
        if is_scattered and nodes * per_node >= _SCATTERED_FROM:
            routes.append(Route("scatter_reduce", "scatter_reduce"))
    return min(routes, key=lambda route: payloads_per_link(route, nodes, per_node))


def described(route: Route, nodes: int, per_node: int) -> str:
    """The choice, for the log."""
    words = {"all_gather": "all-gather", "scatter_reduce": "scatter-reduce"}
    how = words.get(route.name) or f"two-level, with {words[route.between]} between nodes"
    place = f"{nodes} nodes of {per_node} ranks" if per_node > 1 else f"{nodes} ranks"
    sent, most = (payloads_per_link(of, nodes, per_node) for of in (route, Route("all_gather", "all_gather")))
    link = "node" if per_node > 1 else "rank"
    text = f"route: {how}, over {place}; payloads that leave each {link} per step: {sent:.3g}"
    if route.name != "all_gather":
        text += f", by all-gather {most:.3g}"
    return f"{text}; fix it by route=\"{route.name}\""
