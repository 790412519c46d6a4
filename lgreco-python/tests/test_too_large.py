"""Gradients of 16 bits that are too large together with what is remembered: under a GradScaler it hears of them, and its scale falls."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import register

OPTIONS: dict[str, Any] = {"method": "topk", "default": 0.1, "policy": "uniform", "start_iter": 2, "min_elements": 64}


class Scaler:
    """A GradScaler that halves its scale after a step whose gradients are not finite on some rank, which it skips."""

    def __init__(self) -> None:
        self.scale, self.skipped = 4.0, 0

    def get_scale(self) -> float:
        return self.scale

    def update(self, module: torch.nn.Module) -> None:
        parts = [getattr(p.grad, "_local_tensor", p.grad) for p in module.parameters() if p.grad is not None]
        finite = torch.tensor(float(all(bool(part.isfinite().all()) for part in parts)))
        dist.all_reduce(finite, dist.ReduceOp.MIN)
        if not finite:
            self.scale, self.skipped = self.scale / 2, self.skipped + 1


def _trained(rank: int, kind: str) -> tuple[float, int, list[str]]:
    scaler, told = Scaler(), []
    if kind == "ddp":
        module: torch.nn.Module = DDP(Linear(torch.float16), bucket_cap_mb=0.005)
    else:
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float16)
        module = fully_shard(Linear(), mesh=init_device_mesh("cpu", (2,)), mp_policy=policy)
    state = register(module, grad_scaler=scaler, **OPTIONS)
    dtype = torch.float16 if kind == "ddp" else torch.float32
    for at in range(24):
        module.zero_grad()
        # Of rank 1 alone they are too large in some steps.
        size = 7500.0 if rank == 1 or at < 12 else 100.0
        try:
            module({name: torch.full(shape, size * scaler.scale, dtype=dtype) for name, shape in SHAPES.items()}).backward()
        except RuntimeError as error:
            told.append(f"{at}: {error}")
        scaler.update(module)
    return scaler.scale, state._controller.steps, told


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_scaler_hears_of_residuals_that_are_too_large(kind: str) -> None:
    first, second = on_ranks(2, _trained, kind)
    assert first == second and first[1:] == (24, []) and 0 < first[0] < 4
