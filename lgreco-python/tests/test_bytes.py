"""What is sent is what plans say."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import register

OPTIONS: dict[str, Any] = {"start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
SCHEMES: list[dict[str, Any]] = [{"method": "topk", "default": 0.1}, {"method": "qsgd"}, {"method": "powersgd", "default": 2}]
BIAS = 4 * torch.Size(SHAPES["bias"]).numel()
DENSE = 4 * sum(torch.Size(shape).numel() for shape in SHAPES.values())


def _sent(rank: int, door: str) -> list[list[tuple[int, int]]]:
    """Bytes of each step, counted and predicted, scheme by scheme."""
    doors = {
        "DDP": lambda: DDP(Linear()),
        "FSDP2": lambda: fully_shard(Linear(), mesh=init_device_mesh("cpu", (dist.get_world_size(),))),
        "FSDP1": lambda: FSDP(Linear(), device_id=torch.device("cpu")),
    }
    every = []
    for options in SCHEMES:
        module = doors[door]()
        state = register(module, **OPTIONS, **options)
        steps = []
        for step in range(9):
            before = state.compression_stats()[2]
            module(gradients(rank, step)).backward()
            size = None if state.plan is None else state.plan.get("size")
            steps.append((state.compression_stats()[2] - before, DENSE if size is None else size // 8 + BIAS))
        every.append(steps)
    return every


@pytest.mark.parametrize("door", ["DDP", "FSDP1", "FSDP2"])
def test_counted_bytes_are_those_of_plans(door: str) -> None:
    for schemes in on_ranks(2, _sent, door):
        for steps in schemes:
            assert all(counted == predicted for counted, predicted in steps), steps
            assert [counted == DENSE for counted, _ in steps] == [True] * 2 + [False] * 7
