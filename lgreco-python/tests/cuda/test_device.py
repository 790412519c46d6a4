"""Compares buckets that stay in a GPU's memory, on an imitated driver, with the exchange on the host."""

import logging
from typing import Any

import pytest
import torch
from imitation import Imitation, imitated
from linear import SHAPES, Linear, gradients
from ranks import on_ranks
from test_ddp import batch, model
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco.torch import ExchangeError, LGreCoState, lgreco_hook
from lgreco.torch.cuda import Cuda, device_of

STEPS = 20
PLANNED: dict[str, Any] = {"start_iter": 3, "period": 4, "window": 2, "min_elements": 64}
ON_DEVICE: dict[str, Any] = {"_device_of": imitated}
FIXED: dict[str, Any] = {"start_iter": 2, "reduce_dtype": torch.float32}

# Schemes with the same bits on the device as on the host. PowerSGD is missing, because its sums have another order.
SCHEMES: dict[str, dict[str, Any]] = {
    "qsgd": PLANNED | {"method": "qsgd"},
    "eden": PLANNED | {"method": "eden"},
    "topk": PLANNED | {"method": "topk", "default": 0.1},
    "topk in bfloat16": PLANNED | {"method": "topk", "default": 0.1},
    "topk, summed in float32, in bfloat16": PLANNED | {"method": "topk", "default": 0.1, "reduce_dtype": torch.float32},
    "topk, summed in halves": PLANNED | {"method": "topk", "default": 0.1, "reduce_dtype": torch.bfloat16},
    "qsgd in float16": PLANNED | {"method": "qsgd"},
    "qsgd and topk": FIXED | {"settings": {"0.weight": "qsgd 4", "2.weight": "topk 300", "4.weight": "qsgd 3"}},
    "eden and qsgd in bfloat16": FIXED | {"settings": {"0.weight": "eden 2", "2.weight": "qsgd 4", "4.weight": "eden 8 least-squares"}},
    "without feedback": PLANNED | {"method": "topk", "default": 0.1, "error_feedback": False},
    "uniform": PLANNED | {"method": "topk", "default": 0.1, "policy": "uniform"},
}


def wrapped(options: dict[str, Any], dtype: torch.dtype = torch.float32) -> tuple[DDP, LGreCoState]:
    ddp = DDP(model().to(dtype), bucket_cap_mb=0.01)
    state = LGreCoState(None, ddp, **options)
    ddp.register_comm_hook(state, lgreco_hook)
    return ddp, state


def steps_of(ddp: DDP, rank: int, steps: range) -> list[torch.Tensor]:
    """Trains, and returns the means of each step."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    means = []
    for step in steps:
        x, y = batch(rank, step)
        optimizer.zero_grad()
        dtype = next(ddp.parameters()).dtype
        torch.nn.functional.mse_loss(ddp(x.to(dtype)), y.to(dtype)).backward()
        means.append(torch.cat([p.grad.flatten().clone() for p in ddp.parameters()]))  # type: ignore[union-attr]
        optimizer.step()
    return means


def stayed(state: LGreCoState) -> bool:
    """Whether all buckets were exchanged on the device, so that a test does not compare the host's exchange with itself."""
    return state._device is not None and bool(state._device._buckets) and not state._device._refused


def residuals(state: LGreCoState) -> torch.Tensor:
    return torch.cat([state.residual(name) for name in state.names])


Run = tuple[list[torch.Tensor], torch.Tensor, dict[str, str], Any, bool]


def _train(rank: int, options: dict[str, Any], dtype: torch.dtype) -> Run:
    ddp, state = wrapped(options, dtype)
    means = steps_of(ddp, rank, range(STEPS))
    known = [{name: one[name] for name in ("steps", "bytes_in", "bytes_out")} for one in state.metrics().values()]
    return means, residuals(state), state.settings, (state.compression_stats(), known), stayed(state)


def _both(rank: int, options: dict[str, Any], dtype: torch.dtype) -> tuple[Run, Run]:
    return _train(rank, options, dtype), _train(rank, options | ON_DEVICE, dtype)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_means_and_residuals_are_those_of_the_host(scheme: str) -> None:
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(scheme.split()[-1], torch.float32)
    for host, device in on_ranks(2, _both, SCHEMES[scheme], dtype):
        assert device[4] and not host[4] and device[2:4] == host[2:4]
        assert any(setting != "dense" for setting in device[2].values())
        for step, (found, expected) in enumerate(zip(device[0], host[0], strict=True)):
            assert torch.equal(found, expected), step
        assert torch.equal(device[1], host[1])
        # Layers under topk and least-squares eden keep residuals, because these methods are biased.
        biased = ("qsgd and topk", "eden and qsgd in bfloat16")
        assert bool(device[1].any()) == (scheme.split()[0] not in ("qsgd", "eden", "without") or scheme in biased)


def _switched(rank: int) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
    """Layers change their methods at step 9. One layer then has no error feedback, so its residual is sent once."""
    runs = []
    for where in ({}, ON_DEVICE):
        ddp, state = wrapped(FIXED | {"settings": {"0.weight": "topk 300", "2.weight": "qsgd 4", "4.weight": "topk 60"}} | where)
        means = steps_of(ddp, rank, range(9))
        after = {"0.weight": "qsgd 4", "2.weight": "topk 400 bits 3"}
        state._controller.set_settings([after.get(name, "dense") for name in state.names])
        runs.append((means + steps_of(ddp, rank, range(9, STEPS)), residuals(state)))
        assert stayed(state) == (where == ON_DEVICE)
    return runs


def test_layers_may_change_their_methods() -> None:
    for host, device in on_ranks(2, _switched):
        assert all(torch.equal(found, expected) for found, expected in zip(device[0], host[0], strict=True))
        assert torch.equal(device[1], host[1]) and device[1].any()


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).norm() <= 1e-4 * expected.norm())


def test_powersgd_is_nearly_that_of_the_host() -> None:
    settings = {"0.weight": "powersgd 2", "2.weight": "powersgd 4", "4.weight": "powersgd 1"}
    for host, device in on_ranks(2, _both, FIXED | {"settings": settings}, torch.float32):
        assert device[4] and device[2] == host[2] == settings | {name: "dense" for name in host[2] if "bias" in name}
        assert all(near(found, expected) for found, expected in zip(device[0], host[0], strict=True))
        assert near(device[1], host[1]) and device[1].any()


def _linear(rank: int, options: dict[str, Any], steps: int, at_fault: int | None = None) -> Any:
    """Returns the means of each step, the errors, and the residuals."""
    ddp = DDP(Linear(), bucket_cap_mb=0.005)
    state = LGreCoState(None, ddp, **options)
    ddp.register_comm_hook(state, lgreco_hook)
    means: list[dict[str, torch.Tensor] | None] = []
    told = []
    for step in range(steps):
        own = gradients(rank, step)
        if step == at_fault and rank == 1:
            own["second"][3, 5] = torch.inf
        ddp.zero_grad()
        try:
            ddp(own).backward()
            means.append({name: p.grad.clone() for name, p in ddp.module.named_parameters()})  # type: ignore[union-attr]
        except LgrecoError as error:
            means.append(None)
            told.append((step, error.code, error.layer, str(error)))
    assert stayed(state) == ("_device_of" in options)
    return means, told, {name: state.residual(name) for name in state.names}


def mass_is_kept(found: list[Any], world: int, left_out: tuple[int, ...] = (), zeros: dict[int, str] | None = None) -> None:
    """Asserts that the means and the mean residual add up to the gradients of the steps that were exchanged."""
    steps = [step for step in range(len(found[0][0])) if step not in left_out]
    for name, shape in SHAPES.items():
        exchanged = [step for step in steps if (zeros or {}).get(step) != name]
        given = sum(gradients(rank, step)[name] for step in exchanged for rank in range(world)) / world
        sent = sum(found[0][0][step][name] for step in steps)
        kept = sum(residuals[name].view(shape) for _, _, residuals in found) / world
        assert torch.allclose(sent + kept, given, atol=1e-3), name  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["topk", "powersgd"])
def test_no_mass_is_lost_on_three_ranks_by_any_plans(method: str) -> None:
    options = PLANNED | {"method": method, "default": {"topk": 0.1, "powersgd": 2}[method]} | ON_DEVICE
    found = on_ranks(3, _linear, options, STEPS)
    for means, told, _ in found:
        assert not told
        assert all(torch.equal(own[name], first[name]) for own, first in zip(means, found[0][0]) for name in SHAPES)
    mass_is_kept(found, 3)
    assert any(residual.any() for residual in found[0][2].values())


def test_what_goes_wrong_on_one_rank_all_hear_of_a_step_later() -> None:
    options = FIXED | {"settings": {"first": "topk 100", "second": "topk 90", "third": "powersgd 2"}}
    host = on_ranks(2, _linear, options, 9, 5)
    device = on_ranks(2, _linear, options | ON_DEVICE, 9, 5)
    for (_, expected, _), (means, told, _) in zip(host, device, strict=True):
        assert [step for step, *_ in expected] == [5] and [step for step, *_ in told] == [6]
        assert told[0][1:3] == expected[0][1:3]  # the code, and the layer on the rank at fault
        assert not means[5]["second"].any() and means[5]["bias"].any()
    advice = "; under a GradScaler, whose overflows these may be, make the state with grad_scaler="
    assert device[0][1][0][3] == host[0][1][0][3] == "rank 1 failed with error code 101: gradients that are not finite" + advice
    assert device[1][1][0][3] == "second: element 125 is infinite or NaN: gradients must be finite" + advice
    # Step 6 was not begun, and in step 5 the means of the bucket of ``second`` were zeros.
    mass_is_kept(device, 2, (6,), {5: "second"})


def _broken_window(rank: int) -> Any:
    """On the measuring rank, a gradient is not finite in a step of a plan's window."""
    ddp, state = wrapped(SCHEMES["topk"] | ON_DEVICE)
    steps_of(ddp, rank, range(1))
    told, plans = [], []
    for step in range(1, 6):
        handle = None
        if step == 2 and rank == 0:
            handle = next(ddp.module.parameters()).register_hook(lambda gradient: gradient + torch.inf)
        try:
            steps_of(ddp, rank, range(step, step + 1))
        except LgrecoError as error:
            told.append((step, error.code))
        if handle is not None:
            handle.remove()
        plans.append(None if state.plan is None else state.plan["step"])
    return told, plans


def test_a_window_with_what_is_not_finite_begins_anew() -> None:
    (here, plans), (elsewhere, others) = on_ranks(2, _broken_window)
    assert here == [(3, 101)] and elsewhere == [(3, 81)] and plans == others
    assert plans[-1] == 4  # one step later than without the fault; the plan uses step 3's gradients


def _saved(rank: int, first: dict[str, Any], second: dict[str, Any], stop: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    ddp, state = wrapped(first)
    steps_of(ddp, rank, range(stop))
    saved, parameters = state.state_dict(), {name: value.clone() for name, value in ddp.module.state_dict().items()}
    ddp, state = wrapped(second)
    ddp.module.load_state_dict(parameters)
    loaded = state.load_state_dict(saved)
    assert loaded.step == stop and not loaded.missing + loaded.extra + loaded.misshaped
    means = steps_of(ddp, rank, range(stop, STEPS))
    assert stayed(state) == ("_device_of" in second)
    return torch.cat(means), residuals(state), state.settings


@pytest.mark.parametrize("first, second", [(ON_DEVICE, ON_DEVICE), (ON_DEVICE, {}), ({}, ON_DEVICE)], ids=["device", "to host", "from host"])
def test_states_go_on_there_and_on_the_host(first: dict[str, Any], second: dict[str, Any]) -> None:
    options = SCHEMES["topk"]
    expected = on_ranks(2, _train, options, torch.float32)
    found = on_ranks(2, _saved, options | first, options | second, 9)
    for (means, rest, settings), (all_means, all_rest, all_settings, *_) in zip(found, expected, strict=True):
        assert torch.equal(means, torch.cat(all_means[9:])) and torch.equal(rest, all_rest) and settings == all_settings


def _logged(rank: int, options: dict[str, Any], refusing: str) -> tuple[Run, list[str], int]:
    """Trains on a GPU. If ``refusing`` is "memory", rank 1's GPU has no memory from the second plan on."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    class Full(Imitation):
        def allocate(self, length: int) -> torch.Tensor:
            if refusing == "memory" and rank == 1 and self.allocated >= 4:
                raise torch.OutOfMemoryError("no memory")
            return super().allocate(length)

    gpu = Full()
    logging.getLogger("lgreco").addHandler(Lines())
    run = _train(rank, options | {"_device_of": lambda _: gpu}, torch.float32)
    return run, lines, gpu.launches()


def test_what_a_gpu_has_no_memory_for_goes_by_the_host() -> None:
    expected = on_ranks(2, _train, SCHEMES["topk"], torch.float32)
    for rank, (run, lines, launches) in enumerate(on_ranks(2, _logged, SCHEMES["topk"], "memory")):
        assert all(torch.equal(found, other) for found, other in zip(run[0], expected[rank][0], strict=True))
        assert torch.equal(run[1], expected[rank][1]) and launches > 0
        assert lines and all("copied to the host" in line and ("no memory" in line) == (rank == 1) for line in lines)


def test_settings_that_are_not_for_gpus_go_by_the_host() -> None:
    options = FIXED | {"settings": {"0.weight": "topk 300", "2.weight": "hard-threshold 0.5"}}
    expected = on_ranks(2, _train, options, torch.float32)
    for rank, (run, lines, launches) in enumerate(on_ranks(2, _logged, options, "")):
        assert all(torch.equal(found, other) for found, other in zip(run[0], expected[rank][0], strict=True))
        assert torch.equal(run[1], expected[rank][1]) and launches > 0
        assert len(lines) == 1 and "does not run on CUDA devices" in lines[0]


def _on_gloo(rank: int) -> list[object]:
    parameters = torch.nn.Linear(3, 3).parameters()
    return [device_of(parameters), Cuda(torch.device("cuda:0")).lacks(None)]


def test_a_model_stays_on_a_gpu_where_there_is_one_and_nccl() -> None:
    assert on_ranks(1, _on_gloo) == [[None, "a process group without NCCL"]]


@pytest.mark.parametrize("option", [{"residual_dtype": torch.int8}, {"route": "scatter_reduce"}])
def test_options_that_are_not_for_gpus_go_by_the_host(option: dict[str, Any]) -> None:
    options = FIXED | {"settings": {"0.weight": "topk 300"}} | option
    for rank, (run, lines, launches) in enumerate(on_ranks(2, _logged, options, "")):
        assert not run[4] and launches == 0
        assert [next(iter(option)) in line for line in lines] == [True] * (rank == 0)


def _cut(rank: int, moment: str) -> tuple[list[torch.Tensor], list[torch.Tensor], bool]:
    """A collective of step 8 fails on both ranks: at the start of the second collective, or while the last collective runs."""
    from lgreco.torch import device_exchange

    ddp, state = wrapped(SCHEMES["topk"] | ON_DEVICE)
    other, host = wrapped(SCHEMES["topk"])
    steps_of(other, rank, range(8))
    start, started = device_exchange.start, 0

    class Failing:
        def __init__(self, work: Any, number: int) -> None:
            self.work = work
            self.number = number

        def wait(self) -> None:
            self.work.wait()
            if moment == "end" and self.number == in_a_step:
                raise RuntimeError("the network is gone")

        def is_completed(self) -> bool:
            return self.work.is_completed()

    def failing(*arguments: Any) -> Any:
        nonlocal started
        started += 1
        if moment == "start" and started == 2 and in_a_step > 0:
            raise RuntimeError("the network is gone")
        return Failing(start(*arguments), started)

    in_a_step = 0
    device_exchange.start = failing
    means = steps_of(ddp, rank, range(7))
    started = 0
    means += steps_of(ddp, rank, range(7, 8))
    in_a_step, started, failed = started, 0, False
    parameters = {name: value.clone() for name, value in ddp.module.state_dict().items()}
    try:
        steps_of(ddp, rank, range(8, 9))
    except ExchangeError as error:
        failed = "the network is gone" in str(error)
    device_exchange.start = start
    after, saved = residuals(state), state.state_dict()
    ddp, state = wrapped(SCHEMES["topk"] | ON_DEVICE)
    ddp.module.load_state_dict(parameters)
    state.load_state_dict(saved)
    return means + steps_of(ddp, rank, range(8, STEPS)), [residuals(host), after, residuals(state)], failed


@pytest.mark.parametrize("moment", ["start", "end"])
def test_a_step_whose_network_fails_is_taken_back(moment: str) -> None:
    expected = on_ranks(2, _train, SCHEMES["topk"], torch.float32)
    found = on_ranks(2, _cut, moment)
    for (means, (before, after, rest), failed), (all_means, all_rest, *_) in zip(found, expected, strict=True):
        assert failed and before.any() and torch.equal(before, after)
        assert all(torch.equal(own, other) for own, other in zip(means, all_means, strict=True)) and torch.equal(rest, all_rest)


def _untold(rank: int) -> None:
    """Rank 1's device fails to compute the means, after the last message that could report this failure to rank 0."""
    from lgreco.torch import device

    ddp, state = wrapped(SCHEMES["topk"] | ON_DEVICE)
    steps_of(ddp, rank, range(8))
    own = device.Buckets.device.fget

    class Refusing:
        def __init__(self, device: Any) -> None:
            self.device = device

        def __getattr__(self, name: str) -> Any:
            return getattr(self.device, name)

        def next(self, bucket: Any) -> Any:
            request = self.device.next(bucket)
            if request is None:
                raise LgrecoError("out of memory")
            return request

    if rank == 1:
        device.Buckets.device = property(lambda buckets: Refusing(own(buckets)))  # type: ignore[method-assign]
    steps_of(ddp, rank, range(8, 9))
    device.Buckets.device = property(own)  # type: ignore[method-assign]
    if rank == 1:
        with pytest.raises(ExchangeError, match="out of memory"):
            steps_of(ddp, rank, range(9, 10))


def test_what_one_rank_alone_knows_of_is_an_error_there_before_its_next_collective() -> None:
    on_ranks(2, _untold)
