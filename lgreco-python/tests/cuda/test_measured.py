"""Compares compression errors that an imitated GPU measures with those that the host measures."""

import logging
from typing import Any

import pytest
import torch
from linear import Linear, gradients
from ranks import on_ranks
from test_device import FIXED, ON_DEVICE, SCHEMES, stayed, steps_of, wrapped
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import LGreCoState, lgreco_hook

STEPS = 12
MEASURED: dict[str, Any] = {
    scheme: SCHEMES[scheme] for scheme in ("qsgd", "topk", "topk in bfloat16", "qsgd in float16", "without feedback")
} | {"powersgd": FIXED | {"settings": {"0.weight": "powersgd 2", "2.weight": "powersgd 4"}}}

Found = list[dict[str, float | None]]


def _errors(rank: int, options: dict[str, Any], dtype: torch.dtype) -> list[Found]:
    runs = []
    for where in ({}, ON_DEVICE):
        ddp, state = wrapped(options | {"metrics_every": 3} | where, dtype)
        found: Found = []
        for step in range(STEPS):
            steps_of(ddp, rank, range(step, step + 1))
            found.append({name: layer["relative_error"] for name, layer in state.metrics().items()})
        assert stayed(state) == bool(where)
        runs.append(found)
    return runs


def expect_alike(host: Found, device: Found) -> None:
    for found, expected in zip(device, host, strict=True):
        assert found.keys() == expected.keys()
        for name, error in expected.items():
            assert found[name] == (None if error is None else pytest.approx(error, rel=1e-3)), name


@pytest.mark.parametrize("scheme", MEASURED)
def test_errors_are_those_of_the_host(scheme: str) -> None:
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(scheme.split()[-1], torch.float32)
    for host, device in on_ranks(2, _errors, MEASURED[scheme], dtype):
        expect_alike(host, device)
        last = [error for error in device[-1].values() if error is not None]
        assert last and all(0 < error < 1 for error in last) and device[-2] == device[-3] != device[-4]


def _held(rank: int) -> tuple[list[Found], list[float | None]]:
    """A layer has no gradient in a measured step, and keeps the error of the previous measurement."""
    runs = []
    for where in ({}, ON_DEVICE):
        ddp = DDP(Linear(), bucket_cap_mb=0.005)
        settings = {"first": "topk 100", "second": "topk 90", "third": "qsgd 4"}
        state = LGreCoState(None, ddp, **FIXED, settings=settings, metrics_every=2, hold_zeros=True, **where)
        ddp.register_comm_hook(state, lgreco_hook)
        found: Found = []
        for step in range(8):
            given = gradients(rank, step)
            if step == 6:
                given["second"].zero_()
            ddp.zero_grad()
            ddp(given).backward()
            found.append({name: layer["relative_error"] for name, layer in state.metrics().items()})
        assert stayed(state) == bool(where)
        runs.append(found)
    return runs, [step["second"] for step in runs[1]]


def test_of_a_layer_without_a_gradient_nothing_is_measured() -> None:
    for (host, device), second in on_ranks(2, _held):
        expect_alike(host, device)
        assert second[5] == second[7] != second[3] and device[7]["first"] != device[5]["first"]


def _without_memory(rank: int, moment: str) -> tuple[list[float | None], list[str], bool]:
    """Rank 1's GPU has no memory to measure step 6, before or after the exchange."""
    from lgreco.torch.device_exchange import Errors

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lgreco").addHandler(handler)
    ddp = DDP(Linear(), bucket_cap_mb=0.005)
    settings = {"first": "topk 100", "second": "topk 90", "third": "qsgd 4"}
    state = LGreCoState(None, ddp, **FIXED, settings=settings, metrics_every=2, **ON_DEVICE)
    ddp.register_comm_hook(state, lgreco_hook)
    own = getattr(Errors, moment)

    def refused(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    found = []
    for step in range(9):
        setattr(Errors, moment, refused if (rank, step) == (1, 6) else own)
        ddp.zero_grad()
        ddp(gradients(rank, step)).backward()
        found.append(state.metrics()["second"]["relative_error"])
    return found, lines, stayed(state)


@pytest.mark.parametrize("moment", ["__init__", "measured"])
def test_without_memory_a_step_is_not_measured_on_that_rank(moment: str) -> None:
    (others, _, _), (own, lines, stays) = on_ranks(2, _without_memory, moment)
    assert stays and own[6] == own[4] != own[8] and others[4] != others[6] != others[8]
    assert lines and all(line == "the errors of a step are not measured on the GPU: no memory" for line in lines)
