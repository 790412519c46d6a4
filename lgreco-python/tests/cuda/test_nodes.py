"""Compares gradients that are averaged in two levels in GPUs' memory, on an imitated driver, with two levels on the host.

There are two nodes of two ranks.
"""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from imitation import imitated
from linear import Linear, gradients
from ranks import on_ranks
from test_device import FIXED, ON_DEVICE, PLANNED, STEPS, near, residuals, stayed, steps_of, wrapped
from test_held import SCHEMES as HELD, expect_alike, made, used
from test_interrupts import Interrupting
from test_observed import Lines
from test_scaled import Trained, same
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco.torch import ExchangeError, LGreCoState, lgreco_hook
from lgreco.torch.node_buckets import NodeBuckets

WORLD = 4
MIXED = {"0.weight": "qsgd 4", "2.weight": "topk 300", "4.weight": "eden 3"}
POWERSGD: dict[str, Any] = FIXED | {"route": "two_level", "settings": {"0.weight": "powersgd 2", "2.weight": "powersgd 4"}}
SCHEMES: dict[str, dict[str, Any]] = {
    "qsgd": PLANNED | {"method": "qsgd"},
    "eden": PLANNED | {"method": "eden"},
    "topk": PLANNED | {"method": "topk", "default": 0.1},
    "several methods": PLANNED | {"method": "topk,qsgd,eden", "default": 0.1},
    "mixed": FIXED | {"settings": MIXED},
    "mixed, in halves": FIXED | {"settings": MIXED, "reduce_dtype": torch.bfloat16},
    "topk in bfloat16": PLANNED | {"method": "topk", "default": 0.1},
    "topk, in float32, in bfloat16": PLANNED | {"method": "topk", "default": 0.1, "reduce_dtype": torch.float32},
    "qsgd in float16": PLANNED | {"method": "qsgd"},
    "without feedback": PLANNED | {"method": "topk", "default": 0.1, "error_feedback": False},
}


def on_nodes(work: Callable[..., Any], *arguments: Any, per_node: int = 2) -> list[Any]:
    """Runs ``work(rank, *arguments)`` on two nodes."""
    return on_ranks(2 * per_node, _on_node, per_node, work, arguments)


def _on_node(rank: int, per_node: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    os.environ["LOCAL_WORLD_SIZE"] = str(per_node)
    return work(rank, *arguments)


def kept(state: LGreCoState) -> bool:
    """Whether nothing was exchanged on the host."""
    return stayed(state) and isinstance(state._device, NodeBuckets) and bool(state._device._whole)


Run = tuple[list[torch.Tensor], torch.Tensor, Any, bool]


def _train(rank: int, options: dict[str, Any], dtype: torch.dtype) -> Run:
    ddp, state = wrapped(options, dtype)
    means = steps_of(ddp, rank, range(STEPS))
    per_node = dist.get_world_size() // 2
    assert state._place() == [2, rank // per_node, per_node, rank % per_node]
    counts = [{name: one[name] for name in ("steps", "bytes_in", "bytes_out")} for one in state.metrics().values()]
    return means, residuals(state), (state.settings, state.compression_stats(), counts), kept(state)


def _both(rank: int, options: dict[str, Any], dtype: torch.dtype) -> tuple[Run, Run]:
    return _train(rank, options, dtype), _train(rank, options | ON_DEVICE, dtype)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_means_and_residuals_are_those_of_the_host(scheme: str) -> None:
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(scheme.split()[-1], torch.float32)
    runs = on_nodes(_both, SCHEMES[scheme], dtype)
    for host, device in runs:
        assert device[3] and not host[3] and device[2] == host[2]
        assert any(setting != "dense" for setting in device[2][0].values())
        for step, (found, expected, of_first) in enumerate(zip(device[0], host[0], runs[0][1][0], strict=True)):
            assert torch.equal(found, expected) and torch.equal(found, of_first), step
        assert torch.equal(device[1], host[1])
        assert scheme == "several methods" or bool(device[1].any()) == (scheme.split()[0] in ("topk", "topk,", "mixed", "mixed,"))


def test_nodes_may_have_three_ranks() -> None:
    for host, device in on_nodes(_both, SCHEMES["mixed, in halves"], torch.float32, per_node=3):
        assert device[3] and device[2] == host[2] and torch.equal(device[1], host[1])
        assert all(torch.equal(found, expected) for found, expected in zip(device[0], host[0], strict=True))


def test_powersgd_is_nearly_that_of_the_host() -> None:
    for host, device in on_nodes(_both, POWERSGD, torch.float32):
        assert device[3] and device[2] == host[2]
        assert all(near(found, expected) for found, expected in zip(device[0] + [device[1]], host[0] + [host[1]], strict=True))


class _Parts(torch.nn.Module):
    """Some layers have fewer elements than a node has ranks. Each layer is a bucket."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {"scalar": (), "few": (1,), "none": (0,), "odd": (33, 40), "rows": (1, 2000)}
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, rank: int, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * step + rank)
        return sum((p * torch.randn(p.shape, generator=generator)).sum() for p in self.parameters())  # type: ignore[return-value]


def _small(rank: int, bucket_mb: float) -> list[Any]:
    runs = []
    for where in ({}, ON_DEVICE):
        ddp = DDP(_Parts(), bucket_cap_mb=bucket_mb)  # type: ignore[arg-type]
        state = LGreCoState(None, ddp, start_iter=2, settings={"odd": "topk 100", "rows": "qsgd 4"}, **where)
        ddp.register_comm_hook(state, lgreco_hook)
        means = []
        for step in range(6):
            ddp.zero_grad()
            ddp(rank, step).backward()
            means.append(torch.cat([p.grad.flatten() for p in ddp.parameters()]))  # type: ignore[union-attr]
        runs.append((means, residuals(state), kept(state)))
    return runs


@pytest.mark.parametrize("bucket_mb", [1e-6, 1.0])
def test_shards_may_be_empty(bucket_mb: float) -> None:
    for host, device in on_nodes(_small, bucket_mb):
        assert device[2] and torch.equal(device[1], host[1]) and device[1].any()
        assert all(torch.equal(found, expected) for found, expected in zip(device[0], host[0], strict=True))


def _spoilt(rank: int, failing: int, second: str, where: dict[str, Any]) -> Any:
    """In step 5 a gradient of one rank is not finite."""
    ddp, state = made(FIXED | {"settings": {"first": "topk 100", "second": second, "third": "qsgd 4"}} | where)
    told, means, before = [], [], torch.empty(0)
    for step in range(9):
        given = gradients(rank, step)
        if step == 5:
            before = state.residual("second")
            if rank == failing:
                given["second"][63, 5] = torch.nan
        ddp.zero_grad()
        try:
            ddp(given).backward()
            means.append([p.grad.clone() for p in ddp.parameters()])  # type: ignore[union-attr]
        except LgrecoError as error:
            told.append((step, str(error), error.code, error.peer))
        if step == 5:
            assert torch.equal(state.residual("second"), before) and before.any()
    return told, means, kept(state)


# SIDCo has no kernel, so the host exchanges shards under SIDCo.
@pytest.mark.parametrize("failing, second", [(3, "topk 90"), (0, "topk 90"), (2, "sidco 0.05")])
def test_a_gradient_that_is_not_finite_is_told_on_all_ranks(failing: int, second: str) -> None:
    device, host = (on_nodes(_spoilt, failing, second, where) for where in (ON_DEVICE, {}))
    for rank, ((told, means, stays), (on_host, expected, _)) in enumerate(zip(device, host, strict=True)):
        # On the host, the error is raised in the same step, and on a GPU in the next step.
        assert [(step - 1, text.replace("infinite or NaN", "NaN"), *error) for step, text, *error in told] == on_host
        assert stays == second.startswith("topk")
        assert on_host[0][1].startswith("second: element 2525" if rank == failing else f"rank {failing} failed with error code 101")
        assert all(torch.equal(p, q) for found, of_host in zip(means[:5], expected[:5]) for p, q in zip(found, of_host, strict=True))
        layers = ["first", "bias", "second", "third"]
        assert "second" in [name for name, p in zip(layers, means[5], strict=True) if not p.any()]


def _scaled(rank: int, options: dict[str, Any], look: bool) -> list[Any]:
    spoilt = {2: (1, "second"), 6: (0, "third"), 8: (3, "bias"), 13: (2, "first")}
    runs = []
    for where in ({}, ON_DEVICE):
        run = Trained(options | where)
        run.steps(rank, range(STEPS), spoilt, look)
        runs.append((*run.all()[:3], kept(run.state)))
    return runs


@pytest.mark.parametrize("look", [False, True], ids=["", "looked at"])
@pytest.mark.parametrize("scheme", ["topk", "all"])
def test_steps_are_skipped_and_taken_back_as_on_the_host(scheme: str, look: bool) -> None:
    settings = {"first": "topk 300", "second": "qsgd 4", "third": "topk 60 bits 3"}
    options = PLANNED | {"method": "topk", "default": 0.1} if scheme == "topk" else FIXED | {"settings": settings}
    for host, device in on_nodes(_scaled, options, look):
        assert same(device[0], host[0]) and same(device[1], host[1]) and device[2] == host[2]
        assert device[3] and not host[3]
        assert device[2][0] == [step not in (2, 6, 8, 13) for step in range(STEPS)]


def _held(rank: int, options: dict[str, Any]) -> list[Any]:
    runs = []
    for where in ({}, ON_DEVICE):
        ddp, state = made(options | where)
        means = []
        for step in range(14):
            ddp.zero_grad()
            given = used(rank, step, False)
            if step == 12 and rank < 2:
                given["first"][20:] = 0.0  # one shard of the node, not the layer
            ddp(given).backward()
            means += [None if p.grad is None else p.grad.clone() for p in ddp.parameters()]
        runs.append((means, [residuals(state)], state.settings, kept(state)))
    return runs


@pytest.mark.parametrize("scheme", ["fixed", "topk", "summed in halves"])
def test_layers_without_a_gradient_keep_their_residuals(scheme: str) -> None:
    runs = on_nodes(_held, HELD[scheme])
    expect_alike(runs)
    assert any(value is None for value in runs[0][1][0]) and runs[0][1][1][0].any()


def _lacking(rank: int, what: str) -> Any:
    """In step 5, rank 2 lacks memory before or after the gradients are summed."""
    from lgreco.torch import device_exchange, node_bucket

    ddp, state = made(HELD["fixed"] | ON_DEVICE)
    held, fill, told = device_exchange.Held, node_bucket.NodeBucket.fill, []

    def refused(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    for step in range(9):
        if (rank, step) == (2, 5):
            if what == "held":
                device_exchange.Held = refused  # type: ignore[assignment, misc]
            else:
                node_bucket.NodeBucket.fill = refused  # type: ignore[assignment]
        before = residuals(state)
        ddp.zero_grad()
        try:
            ddp(gradients(rank, step)).backward()
        except LgrecoError as error:
            told.append((step, str(error)))
        device_exchange.Held, node_bucket.NodeBucket.fill = held, fill  # type: ignore[misc, method-assign]
        if step == 5:
            assert torch.equal(residuals(state), before) and before.any()
    return told, kept(state)


@pytest.mark.parametrize("what", ["held", "filled"])
def test_all_ranks_hear_that_one_has_failed(what: str) -> None:
    for rank, (told, stays) in enumerate(on_nodes(_lacking, what)):
        own = {"held": "residuals cannot be held on the GPU", "filled": "gradients cannot be summed on the GPU"}[what]
        assert stays and [step for step, _ in told] == [6]
        assert told[0][1] == f"{own}: no memory" if rank == 2 else "rank 2 failed with error code 7" in told[0][1]


def _too_large(rank: int) -> Any:
    """In step 5 a mean exceeds float16, in a shard of local rank 1. The exchange of all other shards has succeeded."""
    ddp = DDP(Linear(torch.float16), bucket_cap_mb=0.005)
    options: dict[str, Any] = {"start_iter": 2, "settings": {"first": "topk 300", "second": "topk 1"}}
    state = LGreCoState(None, ddp, **options, **ON_DEVICE)
    ddp.register_comm_hook(state, lgreco_hook)
    told, before = [], torch.empty(0)
    for step in range(8):
        given = {name: value.half() for name, value in gradients(rank, step).items()}
        if step in (4, 5):
            # Step 4 sends the larger value, and keeps the smaller value in the residual.
            given["second"].zero_()
            given["second"][63, step] = 6e4
            given["second"][63, 6] = 5e4
        if step == 5:
            before = state.residual("second")
        try:
            ddp(given).backward()
        except LgrecoError as error:
            told.append((step, error.code, error.peer))
        if step == 5:
            assert torch.equal(state.residual("second"), before) and before.any()
    return told, residuals(state), kept(state)


def test_a_failure_of_some_peers_takes_all_shards_back() -> None:
    for rank, (told, remembered, stays) in enumerate(on_nodes(_too_large)):
        assert told == ([(6, 5, None)] if rank % 2 == 1 else [(6, 81, 1)]) and stays and remembered.isfinite().all()


def _resumed(rank: int, folder: str, stop: int, first: dict[str, Any], second: dict[str, Any]) -> Any:
    options = SCHEMES["topk"]
    ddp, state = wrapped(options | first)
    steps_of(ddp, rank, range(stop))
    state.save(folder)
    module = ddp.module
    ddp = DDP(module, bucket_cap_mb=0.01)
    state = LGreCoState(None, ddp, **options, **second)
    assert state.load(folder).missing == []
    ddp.register_comm_hook(state, lgreco_hook)
    return steps_of(ddp, rank, range(stop, STEPS)), residuals(state), state.settings, kept(state) == ("_device_of" in second)


@pytest.mark.parametrize("stop", [9, 14])
@pytest.mark.parametrize("first, second", [(ON_DEVICE, {}), ({}, ON_DEVICE), (ON_DEVICE, ON_DEVICE)], ids=["to host", "from host", "device"])
def test_states_go_on_there_and_on_the_host(first: dict[str, Any], second: dict[str, Any], stop: int, tmp_path: pathlib.Path) -> None:
    expected = on_nodes(_train, SCHEMES["topk"], torch.float32)
    for found, host in zip(on_nodes(_resumed, str(tmp_path), stop, first, second), expected, strict=True):
        assert all(torch.equal(mean, other) for mean, other in zip(found[0], host[0][stop:], strict=True))
        assert torch.equal(found[1], host[1]) and found[2] == host[2][0] and found[3]


def _accumulated(rank: int) -> list[Any]:
    runs = []
    for where in ({}, ON_DEVICE):
        ddp, state = wrapped(FIXED | {"settings": MIXED} | where)
        means = []
        for step in range(0, 10, 2):
            with ddp.no_sync():
                steps_of(ddp, rank, range(step, step + 1))
            means += steps_of(ddp, rank, range(step + 1, step + 2))
        runs.append((means, residuals(state)))
    return runs


def test_gradients_are_accumulated() -> None:
    for host, device in on_nodes(_accumulated):
        assert all(torch.equal(found, expected) for found, expected in zip(device[0], host[0], strict=True))
        assert torch.equal(device[1], host[1])


def _refused(rank: int, what: str) -> Any:
    """The GPU has no kernel for one layer's setting, or one rank has no memory for sums inside the node."""
    settings = MIXED | ({"2.weight": "sidco 0.1"} if what == "kernel" else {})
    runs = []
    for where in ({}, ON_DEVICE):
        lines = Lines()
        if what == "memory" and rank == 1 and where:
            from lgreco.torch import node_buckets

            def refused(*_: Any) -> Any:
                raise torch.OutOfMemoryError("no memory")

            node_buckets.NodeBucket = refused  # type: ignore[assignment, misc]
        ddp, state = wrapped(FIXED | {"settings": settings} | where)
        means = steps_of(ddp, rank, range(8))
        runs.append((means, residuals(state), [line for line in lines.lines if "copied to the host" in line], stayed(state)))
    return runs


@pytest.mark.parametrize("what", ["kernel", "memory"])
def test_what_a_gpu_cannot_do_goes_by_the_host_and_is_said(what: str) -> None:
    for rank, (host, device) in enumerate(on_nodes(_refused, what)):
        assert all(torch.equal(found, expected) for found, expected in zip(device[0], host[0], strict=True))
        assert torch.equal(device[1], host[1]) and device[1].any() and not device[3]
        assert device[2] and (what == "kernel" or ("no memory" in device[2][0]) == (rank == 1))


def _seconds(rank: int) -> Any:
    ddp, state = wrapped(PLANNED | {"method": "qsgd", "objective": "seconds"} | ON_DEVICE)
    steps_of(ddp, rank, range(12))
    return state.plan, state.settings, kept(state)


def test_plans_by_seconds_are_the_same_for_peers() -> None:
    runs = on_nodes(_seconds)
    assert all(stays and plan["measured_seconds"] > 0 for plan, _, stays in runs)
    assert all(runs[rank][:2] == runs[rank + 2][:2] for rank in range(2))


def _cut(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The network fails in the message inside the node, on all ranks."""
    from lgreco.torch import node_bucket

    ddp, state = wrapped(SCHEMES["topk"] | ON_DEVICE)
    steps_of(ddp, rank, range(7))
    before, gather = residuals(state), node_bucket.all_gather

    class Failing:
        def __init__(self, work: Any) -> None:
            self.work = work

        def wait(self) -> None:
            self.work.wait()
            raise RuntimeError("the network is gone")

        def is_completed(self) -> bool:
            return True

    node_bucket.all_gather = lambda *arguments: Failing(gather(*arguments))
    with pytest.raises(ExchangeError, match="the network is gone"):
        steps_of(ddp, rank, range(7, 8))
    node_bucket.all_gather = gather
    return before, residuals(state)


def test_a_step_whose_network_fails_is_taken_back() -> None:
    for before, after in on_nodes(_cut):
        assert before.any() and torch.equal(before, after)


def _stopped(rank: int, where: str) -> tuple[bool, bool, bool]:
    """The user interrupts a step on all ranks, while shards are exchanged."""
    ddp, state = wrapped(SCHEMES["topk"] | ON_DEVICE)
    steps_of(ddp, rank, range(7))
    before = residuals(state)
    device, buckets = state._device._device, state._device  # type: ignore[union-attr]
    assert buckets is not None
    buckets._device = Interrupting(device, where, after=False)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        steps_of(ddp, rank, range(7, 8))
    buckets._device = device
    is_kept = torch.equal(residuals(state), before) and bool(before.any())
    ddp = DDP(ddp.module, bucket_cap_mb=0.01)
    ddp.register_comm_hook(state, lgreco_hook)
    means = torch.cat(steps_of(ddp, rank, range(7, 10)))
    least = means.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return is_kept, torch.equal(means, least), kept(state)


@pytest.mark.parametrize("where", ["submit", "next"])
def test_an_interrupt_takes_a_step_back(where: str) -> None:
    assert on_nodes(_stopped, where) == WORLD * [(True, True, True)]


def _numbered(rank: int) -> Any:
    """Nodes are given as groups: ranks 0 and 2, and ranks 1 and 3."""
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    ddp = DDP(Linear(), bucket_cap_mb=0.005)
    options: dict[str, Any] = {"start_iter": 2, "settings": {"first": "topk 300"}, "node_group": groups[rank % 2], "_device_of": imitated}
    state = LGreCoState(None, ddp, route="two_level", **options)
    ddp.register_comm_hook(state, lgreco_hook)
    told = []
    for step in range(6):
        given = gradients(rank, step)
        if step == 3 and rank == 2:
            given["bias"][3] = torch.inf
        try:
            ddp(given).backward()
        except LgrecoError as error:
            told.append((step, error.peer))
    return told, state._place(), kept(state)


def test_errors_number_ranks_node_by_node() -> None:
    for rank, (told, place, stays) in enumerate(on_nodes(_numbered)):
        assert place == [2, rank % 2, 2, rank // 2] and stays
        assert told == [(4, None if rank == 2 else 1)]
