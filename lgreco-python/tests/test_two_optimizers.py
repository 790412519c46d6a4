"""Tests a GradScaler that skips one of two optimizers, both of which train layers of one state."""

import torch
from linear import Linear, gradients
from ranks import on_ranks
from test_errors import OPTIONS
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import register

STEPS, SKIPPED = 9, 5


def _one_is_skipped(rank: int) -> tuple[list[bool], list[bool], list[bool], torch.Tensor]:
    """In one step, the gradient of ``first`` is infinite on rank 1. Returns which parameters have changed in this step, which
    residuals are as before the step, which residuals were not 0, and the weights at the end."""
    model = Linear()
    module = DDP(model, bucket_cap_mb=0.005)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    state = register(module, **OPTIONS, grad_scaler=scaler)
    optimizers = [torch.optim.SGD([model.get_parameter(name) for name in names], lr=0.125) for names in (("first", "bias"), ("second", "third"))]
    found: tuple[list[bool], list[bool], list[bool]] = ([], [], [])
    for at in range(STEPS):
        module.zero_grad()
        given = gradients(rank, at)
        if at == SKIPPED and rank == 1:
            given["first"][0, 0] = torch.inf
        before = [p.detach().clone() for p in model.parameters()]
        state.follow_scale()
        residuals = [state.residual(name) for name, _ in model.named_parameters()]
        scaler.scale(module(given)).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        if at == SKIPPED:
            state.follow_scale()
            moved = [not torch.equal(p, was) for p, was in zip(model.parameters(), before)]
            restored = [torch.equal(state.residual(name), was / 2) for (name, _), was in zip(model.named_parameters(), residuals)]
            found = moved, restored, [bool(was.any()) for was in residuals]
    return *found, torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_scaler_that_skips_one_of_two_optimizers_undoes_the_step_of_both() -> None:
    """``docs/src/guides/failures.md`` promises this. Ranks stay equal."""
    first, second = on_ranks(2, _one_is_skipped)
    for moved, restored, had, _ in (first, second):
        assert moved == [False, False, True, True] and restored == [True] * 4 and had == [True, False, True, True]
    assert torch.equal(first[3], second[3]) and bool(first[3].isfinite().all())
