"""Tests that states which are no longer used free their sockets and threads."""

import gc
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import FULL
from linear import Linear, gradients
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco.torch import LGreCoState, OuterStep, lgreco_hook, register

OPTIONS: dict[str, Any] = {"method": "topk", "default": 0.1, "start_iter": 2, "period": 4, "window": 1, "min_elements": 64}


def _held() -> tuple[int, int]:
    """Returns the numbers of this process's open descriptors and threads."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def _ddp(rank: int) -> None:
    ddp = DDP(Linear(), bucket_cap_mb=0.005)
    register(ddp, **OPTIONS)
    for at in range(2):
        ddp(gradients(rank, at)).backward()


def _subgroup(rank: int) -> None:
    ddp = DDP(Linear(), bucket_cap_mb=0.005, process_group=_subgroup.group)  # type: ignore[attr-defined]
    ddp.register_comm_hook(LGreCoState(None, ddp, on_plan=lambda state: None, **OPTIONS), lgreco_hook)
    for at in range(4):
        ddp(gradients(rank, at)).backward()


def _fsdp1(rank: int) -> None:
    module = FSDP(Linear(), device_id=torch.device("cpu"))
    register(module, **OPTIONS)
    module(gradients(rank, 0)).backward()


def _fsdp2(rank: int) -> None:
    module = fully_shard(Linear(), mesh=_fsdp2.mesh)  # type: ignore[attr-defined]
    register(module, **OPTIONS)
    module(gradients(rank, 0)).backward()


def _outer(rank: int) -> None:
    model = Linear()
    outer = OuterStep(model, every=4, fragments=4, method="topk", on_plan=lambda outer: None)
    for _ in range(12):
        outer.step()


def _refused(rank: int) -> None:
    for options in ({"policy": "best"}, {"start_iter": 2 + rank}):
        with pytest.raises(LgrecoError):
            LGreCoState(None, Linear(), **options)
        with pytest.raises(LgrecoError):
            OuterStep(Linear(), **options)


def _again(rank: int, makes: list[Callable[[int], None]], times: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    _subgroup.group = dist.new_group([0, 1])  # type: ignore[attr-defined]
    _fsdp2.mesh = init_device_mesh("cpu", (2,))  # type: ignore[attr-defined]
    found = []
    for make in makes:
        make(rank)
        before = _held()
        for _ in range(times):
            make(rank)
            if rank == 1:
                gc.collect()  # at other times than rank 0
        found.append((before, _held()))
    # After all groups are destroyed, freeing a state destroys nothing more.
    kept = LGreCoState(None, Linear())
    dist.destroy_process_group()
    del kept
    gc.collect()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return found


def test_states_that_are_gone_hold_nothing() -> None:
    makes = [_ddp, _subgroup, _fsdp1, _fsdp2, _outer, _refused]
    for found in on_ranks(2, _again, makes, 20 if FULL else 4):
        for make, (before, after) in zip(makes, found, strict=True):
            assert after[0] <= before[0] and after[1] <= before[1], make
