"""Tests that sharded and compiled models learn under compression, over enough steps for residuals to matter."""

from typing import Any

import pytest
import torch
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import register

METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "qsgd": {"method": "qsgd"},
    "topk": {"method": "topk", "default": 0.05},
    "powersgd": {"method": "powersgd", "default": 2},
}
STEPS = 150


def _losses(rank: int, kind: str) -> dict[str, tuple[float, float, float]]:
    """Trains a model on another model's outputs, with each method, and without lgreco as "plain". Returns the first loss, the
    last loss and the compression ratio of each."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    found = {}
    for name, options in METHODS.items():
        torch.manual_seed(0)
        teacher = torch.nn.Linear(32, 32)
        model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
        group: dict[str, Any] = {}
        if kind == "fsdp1":
            model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
        elif kind == "fsdp2" or (kind == "hsdp" and not options):
            model = fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        elif kind == "hsdp":
            model, group = fully_shard(model, mesh=mesh["shard"]), {"replicate_group": mesh.get_group("replicate")}
        else:
            model = DDP(model)
        state = register(model, **options, **group, start_iter=5, period=50, window=3) if options else None
        trained = torch.compile(model, backend="aot_eager") if kind == "compiled" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        generator = torch.Generator().manual_seed(rank)
        losses = []
        for _ in range(STEPS):
            x = torch.randn(32, 32, generator=generator)
            optimizer.zero_grad()
            loss = (trained(x) - teacher(x).detach()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found[name] = (losses[0], sum(losses[-10:]) / 10, state.compression_stats()[0] if state is not None else 1.0)
    return found


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("fsdp1", "hsdp", "compiled")]


@pytest.mark.parametrize("kind", ["fsdp2", *SLOW])
def test_losses_fall(kind: str) -> None:
    for found in on_ranks(2, _losses, kind):
        (_, plain, _), (_, of_qsgd, _) = found["plain"], found["qsgd"]
        assert abs(of_qsgd - plain) < 0.02 * plain, found
        for first, last, _ in found.values():
            assert last < 0.4 * first, found
        assert all(ratio > 2 for name, (*_, ratio) in found.items() if name != "plain"), found
