"""lgreco_hook under DistributedDataParallel on Gloo."""

from typing import Any

import pytest
import torch
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import LGreCoState, lgreco_hook

SCHEMES: dict[str, dict[str, Any]] = {
    "qsgd": {"method": "qsgd"},
    "topk": {"method": "topk", "default": 0.1},
    "powersgd": {"method": "powersgd"},
    "hybrid": {"method": "hybrid"},
    "uniform": {"method": "topk", "default": 0.1, "policy": "uniform"},
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


def _plain(rank: int, view: bool) -> torch.Tensor:
    ddp = DDP(model(), bucket_cap_mb=0.01, gradient_as_bucket_view=view)
    train(ddp, rank, range(12))
    return flat(ddp)


def _compressed(rank: int, view: bool, options: dict[str, Any]) -> tuple[torch.Tensor, tuple[float, int, int]]:
    ddp = DDP(model(), bucket_cap_mb=0.01, gradient_as_bucket_view=view)
    state = LGreCoState(None, ddp, start_iter=3, period=4, window=2, **options)
    ddp.register_comm_hook(state, lgreco_hook)
    train(ddp, rank, range(12))
    return flat(ddp), state.compression_stats()


@pytest.mark.parametrize("world", [2, 4])
def test_uncompressed_is_plain_ddp_bit_for_bit(world: int) -> None:
    expected = on_ranks(world, _plain, False)
    found = on_ranks(world, _compressed, False, {"policy": "uncompressed"})
    assert all(torch.equal(values, expected[0]) for values, _ in found)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_end_with_the_same_parameters(scheme: str, view: bool) -> None:
    (first, (ratio, gradients, sent)), (second, _) = on_ranks(2, _compressed, view, SCHEMES[scheme])
    assert torch.equal(first, second)
    assert ratio == gradients / sent > 1.5
    expected = on_ranks(2, _plain, view)[0]
    assert not torch.equal(first, expected) and torch.dist(first, expected) < 0.2 * torch.dist(expected, flat(model()))
