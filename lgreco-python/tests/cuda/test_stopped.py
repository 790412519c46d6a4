"""Tests interrupts by the user during a step on a GPU, and while that step is undone. Residuals must be as before the step, and
training must continue."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from imitation import on_device
from ranks import on_ranks
from test_device import ON_DEVICE, PLANNED, residuals, steps_of, stayed, wrapped
from test_interrupts import Interrupting, Scaler
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import LGreCoState, lgreco_hook

OPTIONS = PLANNED | {"method": "topk", "default": 0.1} | ON_DEVICE


def _observe_on(device: Any, state: LGreCoState) -> None:
    """Passes the real device to windows, because they cannot use the object that replaces the device in these tests."""
    observed = state._device.observed  # type: ignore[union-attr]
    for name in ("observe", "bring_home"):
        call = getattr(observed, name)
        setattr(observed, name, lambda _, *arguments, call=call: call(device, *arguments))


def _stopped(rank: int, where: str, after: bool, again: bool) -> tuple[bool, int, bool, bool]:
    """The user interrupts step 9. Returns whether residuals are as before the step, the number of steps, whether all ranks get
    the same means afterwards, and whether buckets stay on the device."""
    ddp, state = wrapped(OPTIONS)
    steps_of(ddp, rank, range(9))
    before = on_device(state, ddp.module)
    assert before.any() and stayed(state) and state._device is not None and len(state._device._buckets) >= 2
    device = state._device._device
    _observe_on(device, state)
    state._device._device = Interrupting(device, where, after)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        steps_of(ddp, rank, range(9, 10))
    if again:
        # The second interrupt comes before or after the first bucket's residuals are copied to the controller.
        state._device._device = Interrupting(device, "take_home", after)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            state.state_dict()
    state._device._device = device
    kept = torch.equal(residuals(state), before)
    ddp = DDP(ddp.module, bucket_cap_mb=0.01)
    ddp.register_comm_hook(state, lgreco_hook)
    means = torch.cat(steps_of(ddp, rank, range(9, 12)))
    least = means.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return kept, state._controller.steps, torch.equal(means, least), stayed(state)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", ["submit", "next"])
def test_an_interrupt_takes_a_step_on_a_gpu_back(where: str, after: bool, again: bool) -> None:
    assert on_ranks(2, _stopped, where, after, again) == 2 * [(True, 12, True, True)]


def _rescaled(rank: int, where: str, after: bool) -> bool:
    scaler = Scaler()
    ddp, state = wrapped(OPTIONS | {"grad_scaler": scaler})
    steps_of(ddp, rank, range(9))
    before = residuals(state)
    assert before.any() and stayed(state) and state._device is not None and len(state._device._buckets) >= 2
    scaler.scale, device, controller = 8.0, state._device._device, state._controller
    if where == "take_out":
        state._device._device = Interrupting(device, where, after)  # type: ignore[assignment]
    else:
        state._controller = Interrupting(controller, where, after)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        state.follow_scale()
    state._device._device, state._controller = device, controller
    state.follow_scale()
    # ``residuals`` copies the residuals from the device to the host.
    return torch.equal(residuals(state), 2 * before) and stayed(state)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", ["follow_scale", "take_out"])
def test_residuals_on_a_gpu_follow_a_scale_once(where: str, after: bool) -> None:
    assert on_ranks(2, _rescaled, where, after) == 2 * [True]

