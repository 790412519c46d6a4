"""How much memory a run takes beside its gradients, at a size at which that can be told from PyTorch's own."""

from functools import cache

import pytest
import torch
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lgreco.torch import register
from ranks import on_ranks

WIDTH, LAYERS = 1024, 16


def _resident(key: str) -> int:
    with open("/proc/self/status") as status:
        return next(1000 * int(line.split()[1]) for line in status if line.startswith(key))


def _train(rank: int, sharded: bool, options: dict[str, object] | None) -> tuple[int, int, int]:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    model: nn.Module
    if sharded:
        for layer in layers:
            fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
        model = fully_shard(layers, mesh=init_device_mesh("cpu", (2,)))
    else:
        model = DistributedDataParallel(layers, gradient_as_bucket_view=True, bucket_cap_mb=4)
    foretold = 0
    if options is not None:
        memory = register(model, start_iter=2, window=1, **options).memory()
        foretold = memory["total"] - memory["window"]
    x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(rank))
    for _ in range(5):
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
    return _resident("VmRSS"), _resident("VmHWM"), foretold


@cache
def _plain(sharded: bool) -> list[tuple[int, int, int]]:
    return on_ranks(2, _train, sharded, None)


@pytest.mark.parametrize(
    ("sharded", "options", "allowed"),
    [
        (False, {"method": "qsgd"}, 0.5),
        (False, {"method": "topk"}, 1.5),
        (False, {"method": "topk", "residual_dtype": torch.int8}, 0.8),
        # A unit is a sixteenth of the model.
        (True, {"method": "qsgd"}, 0.4 / LAYERS),
        (True, {"method": "topk"}, 1 + 0.4 / LAYERS),
    ],
    ids=["qsgd", "topk", "topk-int8", "fsdp2-qsgd", "fsdp2-topk"],
)
def test_memory_is_little_and_known(sharded: bool, options: dict[str, object], allowed: float) -> None:
    gradients = 4 * LAYERS * WIDTH * WIDTH
    # Rank 0 has the gradients that a plan looks at, until it is made, and the allocator some of it afterwards.
    found = on_ranks(2, _train, sharded, options)[1]
    for what, at in ("resident", 0), ("peak", 1):
        plain = max(rank[at] for rank in _plain(sharded))
        taken = (found[at] - plain) / gradients
        assert taken <= allowed + 0.1, f"{what}: {taken:.2f} times the gradients, {allowed:.2f} allowed"
    foretold = found[2] / gradients
    assert foretold <= allowed + (1 / LAYERS if sharded else 0), f"{foretold:.2f} times the gradients foretold"
