"""How much memory a run takes beside its gradients, at a size at which that can be told from PyTorch's own."""

from functools import cache

import pytest
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from lgreco.torch import LGreCoState, lgreco_hook
from ranks import on_ranks

WIDTH, LAYERS = 1024, 16


def _resident(key: str) -> int:
    with open("/proc/self/status") as status:
        return next(1000 * int(line.split()[1]) for line in status if line.startswith(key))


def _train(rank: int, options: dict[str, object] | None) -> tuple[int, int, int]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))), gradient_as_bucket_view=True, bucket_cap_mb=4)
    foretold = 0
    if options is not None:
        state = LGreCoState(None, model, start_iter=2, window=1, **options)  # type: ignore[arg-type]
        model.register_comm_hook(state, lgreco_hook)
        memory = state.memory()
        foretold = memory["total"] - memory["window"]
    x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(rank))
    for _ in range(5):
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
    return _resident("VmRSS"), _resident("VmHWM"), foretold


@cache
def _plain() -> int:
    return max(resident for resident, _, _ in on_ranks(2, _train, None))


@pytest.mark.parametrize(
    ("options", "allowed"),
    [({"method": "qsgd"}, 0.5), ({"method": "topk"}, 1.5), ({"method": "topk", "residual_dtype": torch.int8}, 0.8)],
    ids=["qsgd", "topk", "topk-int8"],
)
def test_memory_is_little_and_known(options: dict[str, object], allowed: float) -> None:
    gradients = 4 * LAYERS * WIDTH * WIDTH
    plain = _plain()
    # Rank 0 has the gradients that a plan looks at, until it is made, and the allocator some of it afterwards.
    resident, _, foretold = on_ranks(2, _train, options)[1]
    taken = (resident - plain) / gradients
    assert taken <= allowed + 0.1, f"{taken:.2f} times the gradients, {allowed} allowed"
    assert foretold / gradients <= allowed, f"{foretold / gradients:.2f} times the gradients foretold"
