"""Tests lgreco_hook under DistributedDataParallel on Gloo."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco.torch import LGreCoState, lgreco_hook

SCHEMES: dict[str, dict[str, Any]] = {
    "qsgd": {"method": "qsgd"},
    "topk": {"method": "topk", "default": 0.1},
    "powersgd": {"method": "powersgd"},
    "hybrid": {"method": "hybrid"},
    "uniform": {"method": "topk", "default": 0.1, "policy": "uniform"},
    "kmeans": {"method": "topk", "default": 0.1, "policy": "kmeans", "clusters": 2},
}


def model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(48, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)]
    return torch.nn.Sequential(*layers)


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 48, generator=generator), torch.randn(16, 8, generator=generator)


def train(ddp: DDP, rank: int, steps: range, rate: float = 0.05) -> float:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=rate)
    loss = torch.zeros(())
    for step in steps:
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(ddp(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def _train(rank: int, view: bool, options: dict[str, Any] | None) -> tuple[torch.Tensor, float, tuple[float, int, int]]:
    ddp = DDP(model(), bucket_cap_mb=0.01, gradient_as_bucket_view=view)
    stats = (1.0, 0, 0)
    if options is None:
        loss = train(ddp, rank, range(40))
        return flat(ddp), loss, stats
    state = LGreCoState(None, ddp, start_iter=3, period=4, window=2, **options)
    ddp.register_comm_hook(state, lgreco_hook)
    loss = train(ddp, rank, range(40))
    return flat(ddp), loss, state.compression_stats()


@pytest.mark.parametrize("world", [2, 4])
def test_uncompressed_is_plain_ddp_bit_for_bit(world: int) -> None:
    expected = on_ranks(world, _train, False, None)
    found = on_ranks(world, _train, False, {"policy": "uncompressed"})
    assert all(torch.equal(values, expected[0][0]) for values, *_ in found)


def _reported(rank: int) -> tuple[str, dict[str, int]]:
    ddp = DDP(model())
    state = LGreCoState(None, ddp, policy="uncompressed")
    ddp.register_comm_hook(state, lgreco_hook)
    train(ddp, rank, range(3))
    return state.report(), state.memory()


def test_uncompressed_reports_that_ddp_averages_and_lgreco_uses_no_memory() -> None:
    for told, memory in on_ranks(2, _reported):
        assert "DDP averages" in told and "over 2 ranks" in told and "step 0" not in told and "all-gather" not in told
        assert memory["total"] == 0 and not any(memory.values())


def _train_all(rank: int, view: bool) -> list[tuple[torch.Tensor, float, tuple[float, int, int]]]:
    return [_train(rank, view, options) for options in (None, *SCHEMES.values())]


@pytest.mark.parametrize("world, view", [(2, True), *(pytest.param(*of, marks=pytest.mark.slow) for of in ((2, False), (4, False)))])
def test_ranks_train_alike(world: int, view: bool) -> None:
    expected, *schemes = zip(*on_ranks(world, _train_all, view))
    for options, found in zip(SCHEMES.values(), schemes, strict=True):
        (first, _, (ratio, gradients, sent)) = found[0]
        assert all(torch.equal(values, first) for values, *_ in found) and not torch.equal(first, expected[0][0])
        assert ratio == gradients / sent > 1.5
        for (_, loss, _), (_, plain, _) in zip(found, expected):
            assert loss < 1.02 * plain, options


def _of_part(rank: int) -> tuple[torch.Tensor, torch.Tensor, str]:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own, other = groups[rank // 2], dist.new_group([rank], use_local_synchronization=True)
    plain, ddp = DDP(model(), process_group=own), DDP(model(), process_group=own)
    ddp.register_comm_hook(LGreCoState(None, ddp, policy="uncompressed"), lgreco_hook)
    for module in (plain, ddp):
        train(module, rank, range(4))
    with pytest.raises(LgrecoError) as raised:
        LGreCoState(other, ddp)
    return flat(plain), flat(ddp), str(raised.value)


def test_means_are_those_of_the_models_own_group() -> None:
    found = on_ranks(4, _of_part)
    for expected, parameters, _ in found:
        assert torch.equal(parameters, expected)
    assert not torch.equal(found[0][0], found[2][0])
    assert found[3][2] == "process_group has ranks [3], the group over which DDP averages has [2, 3]"


def test_a_process_group_is_needed() -> None:
    with pytest.raises(LgrecoError, match="call torch.distributed.init_process_group first"):
        LGreCoState(None, model())
