"""Tests that a backward pass is one step, even if reentrant checkpoints run inner passes within it."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from lgreco import LgrecoError
from lgreco.torch import LGreCoShardedState, lgreco_hook, register

OPTIONS: dict[str, Any] = {"method": "topk", "default": 0.1, "start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
STEPS = 7


class Stack(torch.nn.Module):
    """Layers under reentrant checkpoints. ``how`` selects how many layers each checkpoint contains, and whether checkpoints are
    nested."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(48, 48) for _ in range(6))
        self.how = how
        self.breaks = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        if self.how == "whole":
            return checkpoint(self._several, x, 0, 6, False, use_reentrant=True)  # type: ignore[no-any-return]
        if self.how == "pairs":
            for at in range(0, 6, 2):
                x = checkpoint(self._several, x, at, at + 2, True, use_reentrant=True)
            return x
        if self.how == "some":
            x = self._several(x, 0, 2, False)
            x = self._several(x, 2, 4, True)
            return self._several(x, 4, 6, False)
        return self._several(x, 0, 6, self.how == "each")

    def _several(self, x: torch.Tensor, start: int, end: int, checkpointed: bool) -> torch.Tensor:
        for layer in self.layers[start:end]:
            x = checkpoint(layer, x, use_reentrant=True) if checkpointed else layer(x)
        if self.breaks and start == 0 and x.requires_grad:
            x.register_hook(_break)
        return x


def _break(_: torch.Tensor) -> None:
    raise KeyError("the user's")


def _wrapped(kind: str, how: str, **options: Any) -> tuple[torch.nn.Module, Any]:
    model = Stack(how)
    if kind == "ddp":
        wrapped: torch.nn.Module = DDP(model, bucket_cap_mb=0.009, static_graph=how == "static")
    elif kind == "fsdp1":
        cpu = torch.device("cpu")
        for at, layer in enumerate(model.layers):
            model.layers[at] = FSDP(layer, device_id=cpu)
        wrapped = FSDP(model, device_id=cpu)
    else:
        world = dist.get_world_size()
        mesh = init_device_mesh("cpu", (world, 1) if kind == "hsdp" else (1, world), mesh_dim_names=("replicate", "shard"))
        for part in (*model.layers, model):
            fully_shard(part, mesh=mesh["shard"])
        if kind == "hsdp":
            return model, LGreCoShardedState(model, replicate_group=mesh.get_group("replicate"), **{**OPTIONS, **options})
        wrapped = model
    return wrapped, register(wrapped, **{**OPTIONS, **options})


def _backward(wrapped: torch.nn.Module, rank: int, at: int) -> torch.Tensor:
    wrapped.zero_grad()
    x = torch.randn(8, 48, generator=torch.Generator().manual_seed(100 * at + rank))
    wrapped(x).square().mean().backward()
    gradients = [getattr(p.grad, "_local_tensor", p.grad) for p in wrapped.parameters() if p.grad is not None]
    return torch.cat([gradient.flatten() for gradient in gradients])


def _trained(rank: int, kind: str, hows: list[str]) -> list[tuple[torch.Tensor, list[int], dict[str, str], int]]:
    found = []
    for how in hows:
        plans: list[int] = []
        wrapped, state = _wrapped(kind, how, on_plan=lambda state, plans=plans: plans.append(state.plan["step"]))
        gradients = torch.cat([_backward(wrapped, rank, at) for at in range(STEPS)])
        found.append((gradients, plans, state.settings, state._controller.steps))
    return found


@pytest.mark.parametrize(
    ("kind", "hows"),
    [
        ("ddp", ["plain", "each", "pairs", "whole", "some"]), ("fsdp1", ["plain", "each", "pairs", "some"]),
        ("fsdp2", ["plain", "each", "pairs", "some"]), ("hsdp", ["plain", "each"]),
    ],
)
def test_a_backward_pass_is_one_step(kind: str, hows: list[str]) -> None:
    for expected, *others in on_ranks(2, _trained, kind, hows):
        assert expected[3] == STEPS and expected[1] == [2, 6]
        for how, (gradients, plans, settings, steps) in zip(hows[1:], others, strict=True):
            assert (steps, plans, settings) == (STEPS, [2, 6], expected[2]), how
            assert torch.equal(gradients, expected[0]), how


def _not_finite(rank: int, kind: str, how: str) -> tuple[list[str], int, bool]:
    """A gradient of rank 1 is not finite. Returns the errors, the number of steps, and whether training continues."""
    wrapped, state = _wrapped(kind, how)
    told = []
    for at in range(STEPS):
        x = torch.randn(8, 48, generator=torch.Generator().manual_seed(100 * at + rank))
        wrapped.zero_grad()
        loss = wrapped(x).square().mean()
        try:
            (loss * float("inf") if at == 3 and rank == 1 else loss).backward()
        except LgrecoError as error:
            told.append(f"{at}: {error}")
    return told, state._controller.steps, bool(_backward(wrapped, rank, STEPS).isfinite().all())


@pytest.mark.parametrize("kind", ["ddp", "fsdp1", "fsdp2"])
def test_training_goes_on_after_a_gradient_that_is_not_finite(kind: str) -> None:
    for told, steps, goes_on in on_ranks(2, _not_finite, kind, "each"):
        assert len(told) == 1 and told[0].startswith("3: ") and "101" in told[0] + "101" * ("finite" in told[0])
        assert goes_on and steps in (STEPS, STEPS + 1)


def _broken_off(rank: int, how: str) -> tuple[bool, int, bool]:
    """The user's code raises after some inner passes. Returns whether residuals are as before, the number of steps, and whether
    training continues."""
    wrapped, state = _wrapped("ddp", how)
    for at in range(4):
        _backward(wrapped, rank, at)
    before = [state.residual(name) for name in state.names]
    model: Any = wrapped.module
    model.breaks = True
    loss = wrapped(torch.ones(8, 48)).square().mean()
    with pytest.raises(KeyError):
        loss.backward()
    model.breaks = False
    kept = all(torch.equal(state.residual(name), was) for name, was in zip(state.names, before)) and bool(state.state_dict())
    wrapped = DDP(model, bucket_cap_mb=0.009)
    wrapped.register_comm_hook(state, lgreco_hook)
    gradients = torch.cat([_backward(wrapped, rank, at) for at in range(4, 7)])
    del loss
    return kept and any(bool(was.any()) for was in before), state._controller.steps, bool(gradients.isfinite().all())


@pytest.mark.parametrize("how", ["some", "pairs"])
def test_an_exception_between_inner_passes_takes_the_step_back(how: str) -> None:
    assert on_ranks(2, _broken_off, how) == 2 * [(True, 7, True)]
