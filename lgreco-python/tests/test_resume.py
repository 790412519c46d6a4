"""Resumes runs of sharded modules, with the same number of ranks or another."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard

from lgreco.torch import LGreCoFSDP1State, LGreCoShardedState, register

STEPS = 12
OPTIONS: dict[str, Any] = {"method": "powersgd", "default": 2, "start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
State = LGreCoShardedState | LGreCoFSDP1State


def make(door: str) -> tuple[torch.nn.Module, State]:
    world = dist.get_world_size()
    if door == "HSDP":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
        module = fully_shard(Linear(), mesh=mesh["shard"])
        return module, LGreCoShardedState(module, replicate_group=mesh.get_group("replicate"), **OPTIONS)
    wrapped = FSDP(Linear(), device_id=torch.device("cpu")) if door == "FSDP1" else fully_shard(Linear(), mesh=init_device_mesh("cpu", (world,)))
    state = register(wrapped, **OPTIONS)
    assert isinstance(state, State)
    return wrapped, state


def train(module: torch.nn.Module, rank: int, steps: range) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for step in steps:
        optimizer.zero_grad()
        module(gradients(rank, step)).backward()
        optimizer.step()


def own(module: torch.nn.Module) -> list[torch.Tensor]:
    """This rank's part of the parameters."""
    return [getattr(p, "_local_tensor", p).detach() for p in module.parameters()]


def _resumed(rank: int, door: str, stop: int) -> tuple[torch.Tensor, dict[str, Any]]:
    module, state = make(door)
    train(module, rank, range(stop))
    if stop < STEPS:
        parameters, saved = [values.clone() for values in own(module)], state.state_dict()
        module, state = make(door)
        for place, values in zip(own(module), parameters, strict=True):
            place.copy_(values)
        loaded = state.load_state_dict(saved)
        assert loaded.step == stop and not loaded.missing + loaded.extra + loaded.misshaped
        train(module, rank, range(stop, STEPS))
    assert any(state.residual(name).any() for name in state.names)
    return torch.cat([values.flatten() for values in own(module)]), state._part()


@pytest.mark.parametrize("door, world", [("FSDP1", 2), ("FSDP2", 2), ("FSDP2", 3), ("HSDP", 4)])
def test_resuming_continues_bit_for_bit(door: str, world: int) -> None:
    expected, found = on_ranks(world, _resumed, door, STEPS), on_ranks(world, _resumed, door, 5)
    for (parameters, state), (resumed, resumed_state) in zip(expected, found):
        assert torch.equal(parameters, resumed) and parameters.any()
        assert torch.equal(state["run"], resumed_state["run"]) and state["layers"].keys() == SHAPES.keys()
        assert all(torch.equal(part, resumed_state["layers"][name]) for name, part in state["layers"].items())


def residuals(state: State) -> torch.Tensor:
    """The residuals of all layers, summed over the ranks."""
    values = torch.cat([state.residual(name) for name in SHAPES])
    dist.all_reduce(values)
    return values


def _saved(rank: int, door: str) -> tuple[dict[str, Any], torch.Tensor]:
    module, state = make(door)
    train(module, rank, range(6))
    return state.state_dict(window=False), residuals(state)


def _taken_over(rank: int, door: str, saved: list[dict[str, Any]]) -> torch.Tensor:
    module, state = make(door)
    loaded = state.load_state_dict(saved[rank], [saved[rank], saved[2]] if rank == 0 else None)
    assert not loaded.missing + loaded.extra + loaded.misshaped
    whole = residuals(state)
    train(module, rank, range(6, 8))
    return whole


@pytest.mark.parametrize("door", ["FSDP1", "FSDP2"])
def test_fewer_ranks_take_the_residuals_over(door: str) -> None:
    """Shards of 40 rows are padded with three ranks, and not padded with two ranks."""
    saved = on_ranks(3, _saved, door)
    assert saved[0][1].any()
    for found in on_ranks(2, _taken_over, door, [state for state, _ in saved]):
        torch.testing.assert_close(found / 2, saved[0][1] / 3)
