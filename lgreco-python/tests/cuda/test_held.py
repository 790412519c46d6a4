"""Layers without a gradient keep their residuals, on an imitated GPU as on the host."""

from typing import Any

import pytest
import torch
from linear import Linear, gradients
from ranks import on_ranks
from test_device import FIXED, ON_DEVICE, PLANNED, STEPS, near, residuals, stayed
from test_scaled import Trained, same
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco.torch import ExchangeError, LGreCoState, lgreco_hook

SETTINGS = {"first": "topk 100", "second": "topk 90", "third": "topk 60 bits 3"}
SCHEMES: dict[str, dict[str, Any]] = {
    "topk": PLANNED | {"method": "topk", "default": 0.1},
    "qsgd": PLANNED | {"method": "qsgd"},
    "eden": PLANNED | {"method": "eden"},
    "without feedback": PLANNED | {"method": "topk", "default": 0.1, "error_feedback": False},
    "summed in halves": PLANNED | {"method": "topk", "default": 0.1, "reduce_dtype": torch.bfloat16},
    "fixed": FIXED | {"settings": SETTINGS},
}


def made(options: dict[str, Any], ddp_options: dict[str, Any] | None = None) -> tuple[DDP, LGreCoState]:
    ddp = DDP(Linear(), bucket_cap_mb=0.005, find_unused_parameters=True, **(ddp_options or {}))
    state = LGreCoState(None, ddp, **options)
    ddp.register_comm_hook(state, lgreco_hook)
    return ddp, state


def used(rank: int, step: int, everywhere_alike: bool) -> dict[str, torch.Tensor]:
    """The gradients of the layers that this rank uses. No rank uses ``second`` in steps 7 and 8, and in step 10 one rank does not
    use another layer."""
    given = gradients(rank, step)
    if step in (7, 8):
        del given["second"]
    if step == 10 and rank == 0 and not everywhere_alike:
        del given["third"]
    return given


Run = tuple[list[torch.Tensor | None], list[torch.Tensor], dict[str, str], bool]


def _train(rank: int, options: dict[str, Any], ddp_options: dict[str, Any], look: bool, switches: bool) -> Run:
    """Trains with unused layers. With ``switches``, the unused layer loses its error feedback while no rank uses it."""
    ddp, state = made(options, ddp_options)
    means, remembered = [], []
    for step in range(STEPS):
        if switches and step == 6:  # the buckets of this step check that all ranks got them
            state._controller.set_settings([(SETTINGS | {"second": "qsgd 4"}).get(name, "dense") for name in state.names])
        ddp.zero_grad()
        ddp(used(rank, step, bool(ddp_options))).backward()
        means += [None if p.grad is None else p.grad.clone() for p in ddp.parameters()]
        if look:
            remembered.append(residuals(state))
    return means, [*remembered, residuals(state)], state.settings, stayed(state)


def _both(rank: int, options: dict[str, Any], *arguments: Any) -> tuple[Run, Run]:
    return _train(rank, options, *arguments), _train(rank, options | ON_DEVICE, *arguments)


def expect_alike(runs: list[tuple[Run, Run]], alike: Any = torch.equal) -> None:
    for host, device in runs:
        assert device[3] and not host[3] and device[2] == host[2]
        for found, expected in zip(device[0], host[0], strict=True):
            assert found is expected is None or alike(found, expected)
        assert all(alike(found, expected) for found, expected in zip(device[1], host[1], strict=True))


@pytest.mark.parametrize("ddp_options", [{}, {"skip_all_reduce_unused_params": True}], ids=["", "skipped"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_remembered_stays_as_on_the_host(scheme: str, ddp_options: dict[str, Any]) -> None:
    runs = on_ranks(2, _both, SCHEMES[scheme], ddp_options, False, False)
    expect_alike(runs)
    assert any(value is None for value in runs[0][1][0])
    assert runs[0][1][1][-1].any() == (scheme in ("topk", "summed in halves", "fixed"))


@pytest.mark.parametrize("look", [False, True], ids=["", "looked at"])
def test_what_is_to_go_out_once_waits_for_a_gradient(look: bool) -> None:
    runs = on_ranks(2, _both, SCHEMES["fixed"], {}, look, True)
    expect_alike(runs)
    if look:
        names = list(SETTINGS)
        second = [values.split([1920, 40, 2560, 2048])[2] for values in runs[0][1][1]]
        assert names[1] == "second" and second[6].any() and torch.equal(second[6], second[8]) and not second[9].any()


def test_powersgd_is_nearly_that_of_the_host() -> None:
    options = FIXED | {"settings": {"first": "powersgd 2", "second": "powersgd 4", "third": "powersgd 1"}}
    expect_alike(on_ranks(2, _both, options, {}, True, False), near)


def _without_memory(rank: int) -> tuple[list[str | None], bool]:
    """In step 7, rank 1's GPU has no memory to hold a residual."""
    from lgreco.torch import device_exchange

    ddp, state = made(SCHEMES["fixed"] | ON_DEVICE)
    held, told = device_exchange.Held, []

    def refused(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    for step in range(10):
        device_exchange.Held = refused if (rank, step) == (1, 7) else held  # type: ignore[assignment, misc]
        before = residuals(state)
        ddp.zero_grad()
        try:
            ddp(gradients(rank, step)).backward()
            told.append(None)
        except LgrecoError as error:
            told.append(str(error))
        if step == 7:
            assert torch.equal(residuals(state), before) and before.any()
    return told, stayed(state)


def test_all_ranks_hear_that_one_has_no_memory_to_hold_a_residual() -> None:
    (others, _), (own, stays) = on_ranks(2, _without_memory)
    assert stays and [step for step, error in enumerate(own) if error is not None] == [8]
    assert own[8] == "residuals cannot be held on the GPU: no memory" and "rank 1" in str(others[8])
    assert [error is None for error in others] == [error is None for error in own]


def _scaled(rank: int, look: bool) -> tuple[Any, Any]:
    """A layer has no gradient in a skipped step, nor in the step after it."""
    runs = []
    for where in ({}, ON_DEVICE):
        run = Trained(SCHEMES["fixed"] | {"hold_zeros": True} | where)
        for step in range(14):
            given = gradients(rank, step)
            if step in (8, 9):
                given["second"].zero_()
            if step == 8 and rank == 1:
                given["third"][3] = torch.inf
            run.step(rank, step, given, look)
        runs.append(run.all())
    return runs[0], runs[1]


@pytest.mark.parametrize("look", [False, True], ids=["", "looked at"])
def test_steps_that_are_skipped_change_nothing(look: bool) -> None:
    for host, device in on_ranks(2, _scaled, look):
        assert same(device[0], host[0]) and same(device[1], host[1]) and device[2] == host[2] and device[3]
        assert device[2][0] == [step != 8 for step in range(14)]


def _cut(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The network fails in a step in which a layer has no gradient, before the means are computed."""
    from lgreco.torch import device_exchange

    ddp, state = made(SCHEMES["fixed"] | ON_DEVICE)
    for step in range(7):
        ddp.zero_grad()
        ddp(used(rank, step, False)).backward()
    before, start = residuals(state), device_exchange.start

    class Failing:
        def __init__(self, work: Any) -> None:
            self.work = work

        def wait(self) -> None:
            self.work.wait()
            raise RuntimeError("the network is gone")

        def is_completed(self) -> bool:
            return self.work.is_completed()

    device_exchange.start = lambda *arguments: Failing(start(*arguments))
    ddp.zero_grad()
    with pytest.raises(ExchangeError, match="the network is gone"):
        ddp(used(rank, 7, False)).backward()
    device_exchange.start = start
    return before, residuals(state)


def test_a_step_whose_network_fails_is_taken_back() -> None:
    for before, after in on_ranks(2, _cut):
        assert before.any() and torch.equal(before, after)
