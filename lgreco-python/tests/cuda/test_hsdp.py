"""Compares shards that are averaged between nodes in a GPU's memory, on an imitated driver, with the exchange on the host."""

from typing import Any

import pytest
import torch
from imitation import imitated
from ranks import on_ranks
from test_device import near, stayed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from lgreco.torch import LGreCoShardedState

STEPS = 12
PLANNED: dict[str, Any] = {"start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
SCHEMES: dict[str, dict[str, Any]] = {
    "qsgd": PLANNED | {"method": "qsgd"},
    "eden": PLANNED | {"method": "eden"},
    "topk": PLANNED | {"method": "topk", "default": 0.1},
    "topk in bfloat16": PLANNED | {"method": "topk", "default": 0.1},
    # Settings are fixed, because a new plan resets PowerSGD's factors on a device but not on the host.
    "powersgd": {"start_iter": 2, "settings": {"0.0.weight": "powersgd 2", "2.0.weight": "powersgd 4"}},
}

Run = tuple[list[torch.Tensor], torch.Tensor, dict[str, str], int, bool]


def _train(rank: int, options: dict[str, Any], dtype: torch.dtype, where: dict[str, Any]) -> Run:
    """Trains on two nodes of two ranks. Returns the gradients after each step, the residuals, and further results to compare."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Tanh()) for _ in range(3)])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy(reduce_dtype=dtype)
    for part in (*model, model):
        fully_shard(part, mesh=mesh["shard"], mp_policy=policy)
    state = LGreCoShardedState(model, replicate_group=mesh.get_group("replicate"), **options, **where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    means = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(8, 40, generator=generator)
        (model(x) - x.flip(1)).square().mean().backward()
        means.append(torch.cat([p.grad.to_local().flatten().clone() for p in model.parameters()]))  # type: ignore[union-attr]
        optimizer.step()
    residuals = torch.cat([state.residual(name) for name in state.names])
    return means, residuals, state.settings, state.compression_stats()[2], stayed(state)


def _both(rank: int, options: dict[str, Any], dtype: torch.dtype) -> tuple[Run, Run]:
    return _train(rank, options, dtype, {}), _train(rank, options, dtype, {"_device_of": imitated})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_shards_means_are_those_of_the_host(scheme: str) -> None:
    dtype = torch.bfloat16 if scheme.endswith("bfloat16") else torch.float32
    for host, device in on_ranks(4, _both, SCHEMES[scheme], dtype):
        assert device[4] and not host[4] and device[2:4] == host[2:4]
        assert any(setting != "dense" for setting in device[2].values())
        alike = near if scheme == "powersgd" else torch.equal
        assert all(alike(found, expected) for found, expected in zip(device[0], host[0], strict=True))
        assert alike(device[1], host[1]) and bool(device[1].any()) == (scheme not in ("qsgd", "eden"))

