"""Tests FullyShardedDataParallel on Gloo."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients, mean
from ranks import on_ranks
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy

from lgreco import LgrecoError
from lgreco.torch import LGreCoFSDP1State, register

STEPS = 9
OPTIONS: dict[str, Any] = {"start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
CPU = torch.device("cpu")


def _run(rank: int, strategy: ShardingStrategy, original: bool, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str], int]:
    module = FSDP(Linear(), sharding_strategy=strategy, device_id=CPU, use_orig_params=original)
    state = register(module, **OPTIONS, **options)
    assert isinstance(state, LGreCoFSDP1State)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        module(gradients(rank, step)).backward()
        optimizer.step()
    with FSDP.summon_full_params(module):
        found = {name: -getattr(module.module, name).detach() for name in SHAPES}
    for name in SHAPES:
        residual = state.residual(name)
        dist.all_reduce(residual)
        found[name] += residual.reshape(SHAPES[name]) / dist.get_world_size()
    return found, state.settings, state.compression_stats()[2]


@pytest.mark.parametrize("options", [{"method": "topk", "default": 0.1}, {"method": "powersgd", "default": 2}])
@pytest.mark.parametrize("strategy", [ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD])
@pytest.mark.parametrize("world", [2, 3])
def test_mass_is_whole(world: int, strategy: ShardingStrategy, options: dict[str, Any]) -> None:
    for found, settings, sent in on_ranks(world, _run, strategy, world == 2, options):
        assert any(setting != "dense" for setting in settings.values())
        assert 0 < sent < STEPS * sum(torch.Size(shape).numel() for shape in SHAPES.values()) * 4
        for name in SHAPES:
            expected = sum(mean(world, step, name) for step in range(STEPS))
            torch.testing.assert_close(found[name], expected, atol=1e-4, rtol=1e-4)


def _layers(rank: int, compressed: bool) -> torch.Tensor:
    """Trains several units with gradients in bfloat16."""
    torch.manual_seed(0)
    parts = [torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Tanh()) for _ in range(3)]
    policy = MixedPrecision(reduce_dtype=torch.bfloat16)
    options: dict[str, Any] = {"device_id": CPU, "use_orig_params": True, "mixed_precision": policy}
    model = FSDP(torch.nn.Sequential(*[FSDP(part, **options) for part in parts], torch.nn.Linear(40, 40)), **options)
    if compressed:
        register(model, **OPTIONS, method="qsgd", default=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    loss = torch.zeros(())
    for _ in range(12):
        optimizer.zero_grad()
        x = torch.randn(8, 40, generator=generator)
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.detach()


def test_several_units_in_bfloat16() -> None:
    plain, compressed = on_ranks(2, _layers, False), on_ranks(2, _layers, True)
    for expected, found in zip(plain, compressed):
        torch.testing.assert_close(found, expected, atol=0.0, rtol=0.02)
        assert found != expected


def _refused(rank: int) -> str:
    groups = (dist.new_group([0, 1]), dist.new_group([rank], use_local_synchronization=True))
    module = FSDP(Linear(), process_group=groups, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_id=CPU)
    with pytest.raises(LgrecoError) as raised:
        register(module)
    return str(raised.value)


def test_hybrid_sharding_is_refused() -> None:
    for error in on_ranks(2, _refused):
        assert "HYBRID_SHARD" in error


def _other_group(rank: int) -> str:
    """A module inside the root is sharded over fewer ranks, as in mixtures of experts."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    experts = FSDP(torch.nn.Linear(40, 40), process_group=pairs[rank // 2], device_id=CPU)
    module = FSDP(torch.nn.Sequential(torch.nn.Linear(40, 40), experts), device_id=CPU)
    with pytest.raises(LgrecoError) as raised:
        register(module, **OPTIONS)
    return str(raised.value)


def test_modules_that_are_sharded_over_other_ranks_are_named() -> None:
    for rank, told in enumerate(on_ranks(4, _other_group)):
        own = [0, 1] if rank < 2 else [2, 3]
        assert told.startswith(f"1: the module is sharded over ranks {own}, and the root over ranks [0, 1, 2, 3]"), told


def _unfrozen(rank: int, original: bool) -> tuple[str, bool]:
    """Returns the error about a unit that was frozen, and whether a new state replaces an earlier state."""
    layers = [torch.nn.Linear(40, 40) for _ in range(2)]
    layers[0].requires_grad_(False)
    options: dict[str, Any] = {"device_id": CPU, "use_orig_params": original}
    module = FSDP(torch.nn.Sequential(*[FSDP(layer, **options) for layer in layers]), **options)
    register(module, **OPTIONS)
    module.requires_grad_(True)
    with pytest.raises(LgrecoError) as raised:
        module(torch.ones(8, 40)).square().mean().backward()
    module = FSDP(torch.nn.Sequential(*[FSDP(torch.nn.Linear(40, 40), **options) for _ in range(2)]), **options)
    for _ in range(2):
        state = register(module, **OPTIONS)
        module(torch.ones(8, 40)).square().mean().backward()
    return str(raised.value), state._controller.steps == 1


def test_units_that_are_trained_later_are_named() -> None:
    for original in (False, True):
        for told, is_replaced in on_ranks(2, _unfrozen, original):
            assert told.startswith("0.weight: the parameter was frozen when the state was made: make another state") and is_replaced
