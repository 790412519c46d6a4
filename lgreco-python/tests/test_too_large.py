"""Tests gradients whose sum with the residual, or whose sum over the ranks, is too large for their type."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco.torch import register

OPTIONS: dict[str, Any] = {"method": "topk", "default": 0.1, "policy": "uniform", "start_iter": 2, "min_elements": 64}


class Scaler:
    """A GradScaler that skips a step with gradients that are not finite on some rank, and then halves its scale."""

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
        # From step 12 on, only rank 1's gradients are too large.
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


def _averaged(rank: int, kind: str, options: dict[str, Any]) -> float:
    module: torch.nn.Module = DDP(Linear()) if kind == "ddp" else fully_shard(Linear(), mesh=init_device_mesh("cpu", (4,)))
    state = register(module, policy="uniform", start_iter=2, min_elements=64, **options)
    off = 0.0
    for _ in range(4):
        module.zero_grad()
        module({name: torch.full(shape, 1e38 + rank) for name, shape in SHAPES.items()}).backward()
        parts = [getattr(p.grad, "_local_tensor", p.grad) for p in module.parameters()]
        off = max(off, *(float((part / 1e38 - 1).abs().max()) for part in parts))
    assert state._controller.steps == 4
    return off


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ddp", {"method": "qsgd", "default": 8}),
        ("ddp", {"method": "topk", "default": 1.0}),
        ("ddp", {"method": "qsgd", "default": 8, "route": "scatter_reduce"}),
        ("fsdp2", {"method": "qsgd", "default": 8}),
    ],
    ids=["qsgd", "topk", "scatter-reduce", "fsdp2"],
)
def test_means_are_right_where_sums_leave_f32(kind: str, options: dict[str, Any]) -> None:
    """Large gradients have the right mean. Like plain DDP, lgreco divides them before it sums them."""
    assert max(on_ranks(4, _averaged, kind, options)) < 0.02


def _alone(rank: int) -> str:
    module = DDP(Linear(torch.float16), bucket_cap_mb=0.005)
    register(module, **OPTIONS)
    for _ in range(8):
        module.zero_grad()
        try:
            module({name: torch.full(shape, 30000.0, dtype=torch.float16) for name, shape in SHAPES.items()}).backward()
        except LgrecoError as error:
            return str(error)
    return "no error"


def test_without_a_scaler_the_layer_is_named() -> None:
    for error in on_ranks(2, _alone):
        assert "third: element" in error and "make the state with grad_scaler=" in error


def _disabled(rank: int) -> str:
    module = DDP(Linear())
    register(module, **OPTIONS, grad_scaler=torch.amp.GradScaler("cpu", enabled=False))
    with pytest.raises(LgrecoError) as raised:
        module({name: torch.full(shape, float("nan") if rank == 1 else 1.0) for name, shape in SHAPES.items()}).backward()
    return str(raised.value)


def test_a_scaler_that_is_disabled_counts_as_none() -> None:
    """Gradients that are not finite must be an error with a disabled scaler, because such a scaler skips no step."""
    first, second = on_ranks(2, _disabled)
    assert "rank 1 failed" in first and "NaN" in second
