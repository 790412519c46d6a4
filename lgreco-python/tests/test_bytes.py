"""Tests that ranks send the number of bytes that plans predict."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients, mean
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import LGreCoShardedState, register

OPTIONS: dict[str, Any] = {"start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
SCHEMES: list[dict[str, Any]] = [{"method": "topk", "default": 0.1}, {"method": "qsgd"}, {"method": "powersgd", "default": 2}]
BIAS = torch.Size(SHAPES["bias"]).numel()
VALUES = sum(torch.Size(shape).numel() for shape in SHAPES.values())
DOORS = [
    ("DDP", torch.float32), ("DDP", torch.bfloat16), ("FSDP1", torch.float32), ("FSDP2", torch.bfloat16),
    ("HSDP", torch.float32), ("HSDP", torch.bfloat16),
]


def _registered(door: str, options: dict[str, Any]) -> tuple[torch.nn.Module, Any]:
    if door == "HSDP":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        sharded = fully_shard(Linear(), mesh=mesh["shard"])
        return sharded, LGreCoShardedState(sharded, replicate_group=mesh.get_group("replicate"), **options)
    doors = {
        "DDP": lambda: DDP(Linear()),
        "FSDP2": lambda: fully_shard(Linear(), mesh=init_device_mesh("cpu", (dist.get_world_size(),))),
        "FSDP1": lambda: FSDP(Linear(), device_id=torch.device("cpu")),
    }
    module = doors[door]()
    return module, register(module, **options)


def parts(door: str) -> int:
    """Number of shards into which each layer is divided before the exchange."""
    return 2 if door == "HSDP" else 1


def _sent(rank: int, door: str, reduce_dtype: torch.dtype) -> list[list[tuple[int, int]]]:
    """Returns the counted bytes and the predicted bytes of each step, for each scheme."""
    every = []
    dense, bias = (reduce_dtype.itemsize * values // parts(door) for values in (VALUES, BIAS))
    for options in SCHEMES:
        module, state = _registered(door, {"reduce_dtype": reduce_dtype, **OPTIONS, **options})
        steps = []
        for step in range(9):
            before = state.compression_stats()[2]
            module(gradients(rank, step)).backward()
            size = None if state.plan is None else state.plan.get("size")
            steps.append((state.compression_stats()[2] - before, dense if size is None else size // 8 + bias))
        every.append(steps)
    return every


@pytest.mark.parametrize("door, reduce_dtype", DOORS)
def test_counted_bytes_are_those_of_plans(door: str, reduce_dtype: torch.dtype) -> None:
    for schemes in on_ranks(2 * parts(door), _sent, door, reduce_dtype):
        for steps in schemes:
            assert all(counted == predicted for counted, predicted in steps), steps
            uncompressed = [counted == reduce_dtype.itemsize * VALUES // parts(door) for counted, _ in steps]
            assert uncompressed == [True] * 2 + [False] * 7


def _summed(rank: int) -> list[tuple[set[torch.dtype], torch.Tensor]]:
    """Returns the types of sums on the network, and the results of the sums."""
    summed: set[torch.dtype] = set()
    all_reduce = dist.all_reduce

    def noting(values: torch.Tensor, *operation: Any, **options: Any) -> Any:
        if not operation:
            summed.add(values.dtype)
        return all_reduce(values, *operation, **options)

    dist.all_reduce = noting
    told = []
    for dtype, options in [
        (torch.bfloat16, {}),
        (torch.bfloat16, {"reduce_dtype": torch.float32}),
        (torch.float32, {}),
        (torch.float32, {"reduce_dtype": torch.bfloat16}),
        (torch.float32, {"reduce_dtype": torch.bfloat16, "policy": "uncompressed"}),
    ]:
        module = DDP(Linear(dtype))
        of_method = {} if "policy" in options else {**OPTIONS, "method": "powersgd", "default": 2}
        register(module, **of_method, **options)
        summed.clear()
        for step in range(4):
            module.zero_grad()
            module(gradients(rank, step)).backward()
        assert module.module.bias.grad is not None
        told.append((set(summed), module.module.bias.grad.float()))
    return told


def test_sums_travel_in_the_type_that_was_asked_for() -> None:
    half, whole = {torch.bfloat16}, {torch.float32}
    for told in on_ranks(2, _summed):
        assert [summed for summed, _ in told] == [half, whole, whole, half, half]
        for _, bias in told:
            torch.testing.assert_close(bias, mean(2, 3, "bias"), atol=0.01, rtol=0.01)
