"""The user interrupts a step on a GPU at every line of the function that renews buckets, and at every instruction of the function
that holds residuals."""

import sys
from types import FrameType
from typing import Any

import pytest
import torch
from imitation import on_device
from linear import Linear, gradients
from ranks import on_ranks
from test_device import FIXED, ON_DEVICE, residuals
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import LGreCoState, device, device_exchange, lgreco_hook

SETTINGS = [{"first": "topk 100", "second": "topk 90"}, {"first": "topk 101", "second": "topk 91"}]


class Interrupt:
    """A trace function that raises KeyboardInterrupt in a function after ``at`` lines or instructions."""

    def __init__(self, function: str, by: str, at: int) -> None:
        self.function, self.by, self.at, self.seen = function, by, at, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in (device.__file__, device_exchange.__file__) or frame.f_code.co_name != self.function:
            return None
        frame.f_trace_opcodes = self.by == "opcode"
        return self._inside

    def _inside(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == self.by:
            self.seen += 1
            if self.seen > self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._inside


def _step(state: LGreCoState, module: torch.nn.Module, step: int, zero: bool = False) -> None:
    ddp = DDP(module)
    ddp.register_comm_hook(state, lgreco_hook)
    ddp.zero_grad()
    given = gradients(0, step)
    if zero:
        given["first"] = torch.zeros_like(given["first"])
    ddp(given).backward()


def _everywhere(rank: int, function: str, by: str) -> tuple[int, list[int]]:
    """Interrupts the function at each trace event. Returns the number of events, and the events at which residuals were lost."""
    holds = function == "_keep"
    module = Linear()
    state = LGreCoState(None, module, **FIXED | ON_DEVICE, settings=SETTINGS[0], hold_zeros=holds)
    step, lost = 0, []
    for at in range(1000):
        for _ in range(3):
            _step(state, module, step)
            step += 1
        before, steps = on_device(state, module), state._controller.steps
        if not holds:
            settings = SETTINGS[1 - at % 2]
            state._controller.set_settings([settings.get(name, "dense") for name in state.names])
        interrupt = Interrupt(function, by, at)
        sys.settrace(interrupt)
        try:
            _step(state, module, step, zero=holds)
        except KeyboardInterrupt:
            if state._controller.steps == steps and not torch.equal(residuals(state), before):
                lost.append(at)
        else:
            return at, lost
        finally:
            sys.settrace(None)
        step += 1
    raise AssertionError("the function has no end")


@pytest.mark.parametrize(("function", "by", "least"), [("_renewed", "line", 10), ("_keep", "opcode", 30)])
def test_no_residual_is_lost(function: str, by: str, least: int) -> None:
    ((events, lost),) = on_ranks(1, _everywhere, function, by)
    assert events >= least and not lost
