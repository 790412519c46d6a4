"""Compares the chosen route with counted bytes."""

import logging
import os
from typing import Any

import pytest
import torch.distributed as dist
from linear import Linear, gradients
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import LGreCoState, exchange, lgreco_hook
from lgreco.torch.route import Route, choose, payloads_per_link

ALL_GATHER, SCATTER_REDUCE = Route("all_gather", "all_gather"), Route("scatter_reduce", "scatter_reduce")
TWO_LEVEL, BOTH = Route("two_level", "all_gather"), Route("two_level", "scatter_reduce")
QUANTISED, HYBRID = frozenset({"qsgd", "eden"}), frozenset({"hybrid"})


@pytest.mark.parametrize(
    "nodes, per_node, methods, on_host, expected",
    [
        (1, 1, QUANTISED, True, ALL_GATHER),
        (2, 1, QUANTISED, True, ALL_GATHER),
        (3, 1, QUANTISED, True, ALL_GATHER),
        (4, 1, QUANTISED, True, SCATTER_REDUCE),
        (4, 1, HYBRID, True, ALL_GATHER),
        (4, 1, frozenset({"qsgd", "topk"}), True, ALL_GATHER),
        (4, 1, QUANTISED, False, ALL_GATHER),
        (2, 2, HYBRID, True, TWO_LEVEL),
        (2, 2, QUANTISED, True, TWO_LEVEL),
        (2, 2, QUANTISED, False, TWO_LEVEL),
        (2, 2, HYBRID, False, TWO_LEVEL),
        (4, 8, HYBRID, True, TWO_LEVEL),
        (4, 8, QUANTISED, True, BOTH),
        (4, 8, QUANTISED, False, TWO_LEVEL),
    ],
)
def test_the_fewest_bytes_leave_each_node(nodes: int, per_node: int, methods: frozenset[str], on_host: bool, expected: Route) -> None:
    assert choose(nodes, per_node, methods, on_host) == expected


def test_published_counts() -> None:
    assert [payloads_per_link(route, 2, 2) for route in (ALL_GATHER, TWO_LEVEL)] == [3, 1]
    assert [payloads_per_link(route, 4, 8) for route in (ALL_GATHER, TWO_LEVEL, BOTH)] == [31, 3, 1.5]
    assert payloads_per_link(SCATTER_REDUCE, 4, 1) == 1.5


def _counted(rank: int, route: str, method: str) -> tuple[float, float]:
    """Returns the bytes that leave rank 0's node in a step, if collectives are rings, and the bytes of a rank's payloads."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    ddp = DDP(Linear())
    state = LGreCoState(None, ddp, method=method, default=4, policy="uniform", start_iter=2, min_elements=64, route=route)
    ddp.register_comm_hook(state, lgreco_hook)
    for at in range(5):
        ddp(gradients(rank, at)).backward()
    left = [0.0]
    start = exchange.start

    def noting(request: Any, group: dist.ProcessGroup, *memory: Any) -> Any:
        if request.kind == "all_to_all":
            # Only parts for ranks of the other node leave the node.
            left[0] += sum(request.lens[of] for of in range(4) if of // 2 != rank // 2)
        elif request.group != "node":
            # In a ring over all ranks, only one of the node's two ranks sends to the other node.
            share = request.length * (1 - 1 / group.size())
            left[0] += share if request.group == "peers" else share / 2
        return start(request, group, *memory)

    exchange.start = noting
    before = state.compression_stats()[2]
    ddp(gradients(rank, 5)).backward()
    exchange.start = start
    counts = [None] * 4
    dist.all_gather_object(counts, (left[0], state.compression_stats()[2] - before))
    of_node = counts[:2]
    sent = sum(sent for _, sent in of_node) if route == "two_level" else of_node[0][1]  # type: ignore[misc]
    return sum(left for left, _ in of_node), sent  # type: ignore[misc]


@pytest.mark.parametrize("route", ["all_gather", "scatter_reduce", "two_level"])
def test_counted_bytes_are_those_by_which_routes_are_chosen(route: str) -> None:
    left, payload = on_ranks(4, _counted, route, "qsgd")[0]
    between = "scatter_reduce" if route == "scatter_reduce" else "all_gather"
    expected = payloads_per_link(Route(route, between), 2, 2) * payload
    # The difference is the bias, which is summed uncompressed, and a few bytes of status records and headers.
    assert 0.85 * expected < left < 1.15 * expected, (left, expected)


def _logged(rank: int, per_node: int | None, options: dict[str, Any]) -> tuple[list[str], bool]:
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    if per_node is not None:
        os.environ["LOCAL_WORLD_SIZE"] = str(per_node)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lgreco")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    state = LGreCoState(None, Linear(), **options)
    logger.removeHandler(handler)
    return [line for line in lines if line.startswith("route")], state._nodes is not None


def test_one_line_states_the_choice() -> None:
    def told(world: int, per_node: int | None, **options: Any) -> tuple[list[str], bool]:
        (lines, has_nodes), *others = on_ranks(world, _logged, per_node, options)
        assert all(other == ([], has_nodes) for other in others)
        return lines, has_nodes

    by_nodes = "route: two-level, with all-gather between nodes, over 2 nodes of 2 ranks; payloads that leave each node per step: 1, by all-gather 3"
    assert told(4, 2) == ([f'{by_nodes}; fix it by route="two_level"'], True)
    assert told(4, 2, route="all_gather") == ([], False)
    assert told(2, 2) == (['route: all-gather, over 2 ranks; payloads that leave each rank per step: 1; fix it by route="all_gather"'], False)
    lines, has_nodes = told(4, 4, method="qsgd")
    assert lines[0].startswith("route: scatter-reduce, over 4 ranks; payloads that leave each rank per step: 1.5, by all-gather 3") and not has_nodes
    assert told(4, None)[0][0].startswith("route: all-gather, over 4 ranks; payloads that leave each rank per step: 3;")
