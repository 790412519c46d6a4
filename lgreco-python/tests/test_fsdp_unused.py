"""Tests parameters of fully_shard that have no gradient in a step, on all ranks or on one."""

import logging

import pytest
import torch
from linear import SHAPES, Linear, gradients
from ranks import on_ranks
from test_errors import OPTIONS
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from lgreco.torch import register

STEPS = 8


def _without_first(rank: int, zeros: bool) -> tuple[list[str], float, bool]:
    """``first`` has no gradient in some steps. With ``zeros``, only rank 1 lacks this gradient, and FSDP reduces zeros in its
    place. Returns the log, the largest difference from the sums, and whether there were residuals."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lgreco").addHandler(handler)
    module = fully_shard(Linear(), mesh=init_device_mesh("cpu", (2,)))
    if zeros:
        module.set_reduce_scatter_unused_params(True)
    state = register(module, **OPTIONS)
    sums = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    found = {name: torch.zeros(shape) for name, shape in SHAPES.items()}

    def lacks(rank: int, step: int, name: str) -> bool:
        return name == "first" and step in (4, 5) and (rank == 1 or not zeros)

    for step in range(STEPS):
        module.zero_grad()
        module({name: values for name, values in gradients(rank, step).items() if not lacks(rank, step, name)}).backward()
        for name, p in module.named_parameters():
            if p.grad is not None:
                found[name] += p.grad.full_tensor()  # type: ignore[attr-defined]
            sums[name] += sum(gradients(of, step)[name] for of in range(2) if not lacks(of, step, name)) / 2
    left = {name: state.residual(name) for name in SHAPES}
    for values in left.values():
        torch.distributed.all_reduce(values)
    apart = max(
        float((found[name] + left[name].view(-1)[: sums[name].numel()].view(SHAPES[name]) / 2 - sums[name]).abs().max()) for name in SHAPES
    )
    return [text for text in told if "no gradient" in text], apart, any(bool(values.any()) for values in left.values())


needs_2_15 = pytest.mark.skipif(not hasattr(FSDPModule, "set_reduce_scatter_unused_params"), reason="before PyTorch 2.15")


@needs_2_15
def test_a_parameter_without_gradient_on_one_rank_is_summed_as_zeros() -> None:
    for told, apart, has_residuals in on_ranks(2, _without_first, True):
        assert told == [] and apart < 1e-4 and has_residuals


@needs_2_15
def test_a_parameter_that_is_left_out_is_logged_once() -> None:
    for rank, (told, apart, _) in enumerate(on_ranks(2, _without_first, False)):
        (text,) = told
        assert text.startswith(f"first: the parameter has no gradient on rank {rank} in this step") and apart < 1e-4
        assert "set_reduce_scatter_unused_params(True)" in text
