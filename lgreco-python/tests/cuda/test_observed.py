"""Compares plans from gradients in a GPU's memory, on an imitated driver, with plans that the host makes."""

import logging
from typing import Any

import pytest
import torch
from imitation import Imitation, imitated
from ranks import on_ranks
from test_device import PLANNED, stayed, steps_of, wrapped
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco._lgreco import DeviceWindow
from lgreco.torch import lgreco_hook, observed as windows
from lgreco.torch.observed import Observed

STEPS = 14

PLANS: dict[str, dict[str, Any]] = {
    "qsgd": {"method": "qsgd"},
    "eden": {"method": "eden"},
    "qsgd in bfloat16": {"method": "qsgd"},
    "topk": {"method": "topk", "default": 0.1},
    "topk in float16": {"method": "topk", "default": 0.1},
    "topk in full, ahead": {"method": "topk", "default": 0.1, "widths": ["full"], "lead": 2},
    "powersgd": {"method": "powersgd", "default": 2},
    "hybrid": {"method": "hybrid"},
    "uniform": {"method": "topk", "default": 0.1, "policy": "uniform"},
    "accordion": {"method": "topk", "policy": "accordion", "accordion": (0.2, 0.02)},
}

Run = tuple[list[dict[str, str]], list[Any], bool, list[str], list[tuple[int, int]]]


class Lines(logging.Handler):
    """Collects log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("lgreco").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _run(rank: int, options: dict[str, Any], dtype: torch.dtype, gpu: Imitation | None, fall: int = 9) -> Run:
    """Returns the settings and plans of each step, whether all buckets stayed on the device, and the log. Also returns how many
    layers were observed on the device and on the host."""
    lines, seen = Lines(), []
    where = {} if gpu is None else {"_device_of": lambda _: gpu}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    accordion = {"optimizer": optimizer} if options.get("policy") == "accordion" else {}
    ddp, state = wrapped(PLANNED | options | accordion | where, dtype)
    observe = Observed.observe

    def observed(self: Observed, device: Any, layers: list[int], gradients: list[torch.Tensor]) -> list[int]:
        left = observe(self, device, layers, gradients)
        seen.append((len(layers) - len(left), len(left)))
        return left

    Observed.observe = observed  # type: ignore[method-assign]
    settings, plans = [], []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 1.0 if step < fall else 0.1
        steps_of(ddp, rank, range(step, step + 1))
        if options.get("lead") and state._planning.under_way is not None:
            state._planning.under_way.exception()  # waits, so that the plan is in time on every machine
        settings.append(state.settings)
        plans.append(state.plan)
    Observed.observe = observe  # type: ignore[method-assign]
    return settings, plans, stayed(state), lines.lines, seen


def _both(rank: int, options: dict[str, Any], dtype: torch.dtype) -> tuple[Run, Run]:
    return _run(rank, options, dtype, None), _run(rank, options, dtype, Imitation())


def same_plans(found: Any, expected: Any) -> bool:
    """Whether plans are the same, except for rounding of errors that were summed in another order."""
    return all(
        (one is None) == (other is None)
        and (one is None or {**one, "error": 0, "why": ""} == {**other, "error": 0, "why": ""})
        and (one is None or "error" not in one or abs(one["error"] - other["error"]) <= 1e-4 * other["error"])
        for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("plan", PLANS)
def test_plans_are_those_of_the_host_without_gradients_there(plan: str) -> None:
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(plan.split()[-1], torch.float32)
    for rank, (host, device) in enumerate(on_ranks(2, _both, PLANS[plan], dtype)):
        assert device[2] and not host[2]
        assert device[0] == host[0] and same_plans(device[1], host[1])
        assert device[1][-1] is not None and len({tuple(settings.items()) for settings in device[0]}) > 1
        assert not device[3] and not host[4]
        # All gradients were observed on the device, and only on the rank that plans.
        assert bool(device[4]) == (rank == 0) and all(here > 0 and there == 0 for here, there in device[4])


class _Refusing:
    """A window that refuses the gradients of one step."""

    refused = 0
    bytes = staticmethod(DeviceWindow.bytes)

    def __init__(self, device: Any, controller: Any, memory: int) -> None:
        self._window = DeviceWindow(device, controller, memory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._window, name)

    def observe(self, device: Any, layers: list[int], addresses: list[int], step: int) -> None:
        if step == self.refused:
            raise RuntimeError("refused")
        self._window.observe(device, layers, addresses, step)


def _refused(rank: int, refused: int) -> tuple[Run, Run]:
    host = _run(rank, PLANS["topk"], torch.float32, None)
    _Refusing.refused = refused
    windows.DeviceWindow = _Refusing  # type: ignore[assignment, misc]
    device = _run(rank, PLANS["topk"], torch.float32, Imitation())
    windows.DeviceWindow = DeviceWindow  # type: ignore[misc]
    return host, device


@pytest.mark.parametrize("refused", [1, 2])
def test_a_step_that_is_refused_is_no_step_of_zeros(refused: int) -> None:
    host, device = on_ranks(2, _refused, refused)[0]
    said = "copied to the host" if refused == 1 else "left out"
    assert device[2] and device[3] and all(said in line and "refused" in line for line in device[3])
    if refused == 1:
        assert same_plans(device[1], host[1]) and all(here == 0 for here, _ in device[4])
    else:
        # The plan uses only the first step's gradients, so its errors are close to those of both steps. If the second
        # step counted as zeros, the errors would be a quarter as large.
        ratios = [one["error"] / other["error"] for one, other in zip(device[1], host[1], strict=True) if one]
        assert ratios and all(0.5 < ratio < 2.5 for ratio in ratios), ratios


def _falls(rank: int, fall: int, lead: int) -> tuple[Run, Run]:
    options = PLANS["accordion"] | {"lead": lead}
    return _run(rank, options, torch.float32, None, fall), _run(rank, options, torch.float32, Imitation(), fall)


@pytest.mark.parametrize(("fall", "lead"), [(10, 0), (11, 0), (10, 1), (11, 1)])
def test_a_rate_that_falls_within_a_window_or_at_its_plan_is_heard_of(fall: int, lead: int) -> None:
    """Plans are due at steps 3, 7 and 11. A plan uses the two steps before it, or with a ``lead`` of 1 the two steps before the
    previous step."""
    for host, device in on_ranks(2, _falls, fall, lead):
        assert device[2] and device[0] == host[0] and same_plans(device[1], host[1]) and not device[3]


def _abandoned(rank: int, lead: int) -> tuple[Any, bool]:
    """The user interrupts the backward pass of a step when the window of the next plan is complete."""
    ddp, state = wrapped(PLANNED | PLANS["topk"] | {"lead": lead, "_device_of": imitated})
    steps_of(ddp, rank, range(10))
    handle = next(ddp.module.parameters()).register_hook(lambda gradient: (_ for _ in ()).throw(KeyError("of the user's own")))
    with pytest.raises(KeyError):
        steps_of(ddp, rank, range(10, 11))
    handle.remove()
    ddp = DDP(ddp.module, bucket_cap_mb=0.01)
    ddp.register_comm_hook(state, lgreco_hook)
    saved = state.state_dict()
    steps_of(ddp, rank, range(10, STEPS))
    return state.plan, bool(saved) and stayed(state)


@pytest.mark.parametrize("lead", [0, 2])
def test_what_was_observed_outlives_a_step_that_is_given_up(lead: int) -> None:
    for plan, stays in on_ranks(2, _abandoned, lead):
        assert stays and plan["step"] >= 11


class Small(Imitation):
    """A GPU without memory for windows, or for plans."""

    def __init__(self, lacking: str) -> None:
        super().__init__()
        self.lacking = lacking

    def allocate(self, length: int) -> torch.Tensor:
        # Only windows request memory of these sizes.
        if self.lacking == "window" and length in self.windows:
            raise torch.OutOfMemoryError("no memory for a window")
        return super().allocate(length)

    def allocate_aside(self, length: int) -> torch.Tensor:
        if self.lacking == "plan":
            raise torch.OutOfMemoryError("no memory for a plan")
        return super().allocate_aside(length)

    windows: tuple[int, ...] = ()


def _lacking(rank: int, lacking: str, options: dict[str, Any]) -> tuple[Run, Run]:
    gpu = Small(lacking)
    _, state = wrapped(PLANNED | options)
    gpu.windows = (DeviceWindow.bytes(state._controller),)
    return _run(rank, options, torch.float32, None), _run(rank, options, torch.float32, gpu)


@pytest.mark.parametrize("lead", [0, 2])
@pytest.mark.parametrize("lacking", ["window", "plan"])
def test_the_host_plans_where_the_gpu_cannot(lacking: str, lead: int) -> None:
    options = PLANS["topk"] | {"lead": lead}
    for rank, (host, device) in enumerate(on_ranks(2, _lacking, lacking, options)):
        # If a plan fails on the GPU, the host makes the plan when it is due, from the same gradients.
        assert device[2] and device[0] == host[0] and device[1] == host[1]
        told = {"window": "no memory for a window", "plan": "no memory for a plan"}[lacking]
        assert bool(device[3]) == (rank == 0) and all(told in line for line in device[3])
        assert all((here == 0) == (lacking == "window") for here, _ in device[4])


def _saved(rank: int, first: dict[str, Any], second: dict[str, Any], stop: int) -> tuple[Any, Any]:
    ddp, state = wrapped(first)
    steps_of(ddp, rank, range(stop))
    saved, parameters = state.state_dict(), {name: value.clone() for name, value in ddp.module.state_dict().items()}
    means = steps_of(ddp, rank, range(stop, STEPS))  # saving has not changed the run
    ddp, state = wrapped(second)
    ddp.module.load_state_dict(parameters)
    state.load_state_dict(saved)
    again = steps_of(ddp, rank, range(stop, STEPS))
    assert stayed(state) == ("_device_of" in second)
    return (torch.cat(means), torch.cat(again)), state.plan


@pytest.mark.parametrize("stop", [10, 11], ids=["within", "behind"])
@pytest.mark.parametrize("second", ["there", "on the host"])
def test_states_have_what_was_observed(stop: int, second: str) -> None:
    """States are saved within the window of a plan, and at its end."""
    options = PLANNED | PLANS["topk"]
    there = {"_device_of": imitated}
    expected = on_ranks(2, _saved, options, options, stop)
    found = on_ranks(2, _saved, options | there, options | (there if second == "there" else {}), stop)
    for (means, plan), (all_means, expected_plan) in zip(found, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(means, all_means)) and same_plans([plan], [expected_plan])
