"""Tests plans by seconds on an imitated GPU. The GPU's clock counts launches and bytes, so that every run makes the same
decisions."""

import logging
import re
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from imitation import Imitation
from linear import SHAPES, Linear, gradients, mean
from ranks import on_ranks
from test_device import residuals, stayed
from test_scaled import Trained
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import LGreCoShardedState, LGreCoState, lgreco_hook
from lgreco.torch.checkpoint import to_bytes

STEPS = 14
PLANNED: dict[str, Any] = {"objective": "seconds", "start_iter": 4, "period": 4, "window": 1, "min_elements": 64}
SLOW_LINK, FAST_LINK = (1e-6, 1e-4), (1e-3, 1e-12)
"""Seconds per kernel launch, and per byte that each rank sends."""


class Moment(NamedTuple):
    at: float
    number: int


class Clocked(Imitation):
    """An imitated GPU that records the steps in which the host would wait, because it reads an event before its work is done."""

    def __init__(self, launch: float, byte: float) -> None:
        super().__init__()
        self.launch, self.byte, self.sent = launch, byte, 0.0
        self.marked = self.known = 0
        self.waits: list[int] = []
        self.state: Any = None
        gather, reduce, exchange = dist.all_gather_into_tensor, dist.all_reduce, dist.all_to_all_single

        def gathering(parts: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            self.sent += parts.nbytes * (1 - 1 / dist.get_world_size(options.get("group")))
            return gather(parts, *arguments, **options)

        def reducing(values: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            self.sent += 2 * values.nbytes * (1 - 1 / dist.get_world_size(options.get("group")))
            return reduce(values, *arguments, **options)

        def exchanging(to: torch.Tensor, sent: torch.Tensor, to_lens: list[int], lens: list[int], **options: Any) -> Any:
            others = sum(lens) - lens[dist.get_rank(options.get("group"))]
            self.sent += others * sent.element_size()
            return exchange(to, sent, to_lens, lens, **options)

        dist.all_gather_into_tensor, dist.all_reduce, dist.all_to_all_single = gathering, reducing, exchanging

    def now(self) -> float:
        return self.launches() * self.launch + self.sent * self.byte

    def mark(self) -> Moment:  # type: ignore[override]
        self.marked += 1
        return Moment(super().mark(), self.marked)

    def later(self, number: torch.Tensor) -> Any:
        value, marked = super().later(number), self.marked

        def known() -> torch.Tensor:
            self.known = max(self.known, marked)
            return value()

        return known

    def seconds(self, start: Moment, end: Moment) -> float:  # type: ignore[override]
        if end.number > self.known:
            self.waits.append(self.state._controller.steps)
        return end.at - start.at


class Lines(logging.Handler):
    """The lines of lgreco's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("lgreco").addHandler(self)
        logging.getLogger("lgreco").setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        # The log also has lines about the route and the settings.
        if not re.search("^route: | layers compressed", record.getMessage()):
            self.lines.append(record.getMessage())


def made(clock: tuple[float, float], options: dict[str, Any]) -> tuple[DDP, LGreCoState, Clocked]:
    ddp, gpu = DDP(Linear(), bucket_cap_mb=0.005), Clocked(*clock)
    state = gpu.state = LGreCoState(None, ddp, **PLANNED | options, _device_of=lambda _: gpu)
    ddp.register_comm_hook(state, lgreco_hook)
    return ddp, state, gpu


def train(ddp: DDP, rank: int, steps: range) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    for step in steps:
        optimizer.zero_grad()
        ddp(gradients(rank, step)).backward()
        optimizer.step()


class Run(NamedTuple):
    plans: list[dict[str, Any]]
    settings: dict[str, str]
    lines: list[str]
    waits: list[int]
    """Steps before which this rank waited for an event."""


def mass_is_kept(ddp: DDP, state: LGreCoState, steps: int) -> None:
    world = dist.get_world_size()
    for name, p in ddp.module.named_parameters():
        left = state.residual(name)
        dist.all_reduce(left)
        sent = left.reshape(SHAPES[name]) / world - p.detach()
        torch.testing.assert_close(sent, sum(mean(world, step, name) for step in range(steps)), atol=1e-4, rtol=1e-4)


def _train(rank: int, clocks: list[tuple[float, float]], options: dict[str, Any], later: tuple[float, float] | None = None) -> Run:
    """Trains with the clock of this rank in ``clocks``. From the first plan on, the clock is ``later`` if it is given."""
    log, plans = Lines(), []

    def planned(state: LGreCoState) -> None:
        plans.append(state.plan)
        if later is not None:
            gpu.launch, gpu.byte = later

    ddp, state, gpu = made(clocks[rank], {"on_plan": planned} | options)
    train(ddp, rank, range(STEPS))
    assert stayed(state)
    if options["method"] in ("topk", "powersgd"):
        mass_is_kept(ddp, state, STEPS)
    return Run(plans, state.settings, log.lines, gpu.waits)


def alike(runs: list[Run]) -> list[dict[str, Any]]:
    """Asserts that all ranks have the same plans, whose reasons rank 0 has logged, and returns them."""
    for run in runs:
        assert run.plans == runs[0].plans and run.settings == runs[0].settings
        assert all(plan["plan_seconds"] > 0 and plan["measured_seconds"] > 0 for plan in run.plans)
    assert [run.lines for run in runs] == [[plan["why"] for plan in runs[0].plans]] + [[]] * (len(runs) - 1)
    return runs[0].plans


@pytest.mark.parametrize("method, clock", [
    # The case of QSGD with slow kernels is left out: QSGD saves time even then, by fewer launches than uncompressed sums.
    *[pytest.param(method, SLOW_LINK, id=f"{method}, slow link") for method in ("qsgd", "topk", "powersgd", "hybrid")],
    *[pytest.param(method, FAST_LINK, id=f"{method}, slow kernels") for method in ("topk", "powersgd")],
])
def test_layers_are_compressed_where_that_pays(method: str, clock: tuple[float, float]) -> None:
    runs = on_ranks(2, _train, [clock, clock], {"method": method})
    plans = alike(runs)
    assert [plan["step"] for plan in plans] == [4, 8, 12]
    # Only the rank that plans waits, for its trials before each plan.
    assert set(runs[0].waits) == {4, 8, 12} and not runs[1].waits
    warmed, last = plans[0], plans[-1]
    assert warmed["uncompressed_seconds"] == pytest.approx(warmed["measured_seconds"], rel=0.01)
    if clock == SLOW_LINK:
        assert all(plan["compressed_layers"] == 3 for plan in plans)
        assert warmed["seconds_per_byte"] == pytest.approx(clock[1], rel=0.01)
        assert last["plan_seconds"] < last["uncompressed_seconds"] / 3
        # Messages of small layers consist mostly of headers.
        assert last["measured_seconds"] == pytest.approx(last["plan_seconds"], rel=0.2)
        assert 0 < last["computing_seconds"] < 0.01 * last["measured_seconds"]
    else:
        assert all(plan["compressed_layers"] == 0 and plan["plan_seconds"] == plan["uncompressed_seconds"] for plan in plans)
        assert set(runs[0].settings.values()) == {"dense"}
        assert last["computing_seconds"] == pytest.approx(last["measured_seconds"], rel=1e-4)
        assert last["default_seconds"] > 1.1 * last["uncompressed_seconds"]


def test_the_slowest_gpu_decides_for_all() -> None:
    link = 1e-6
    slow = alike(on_ranks(2, _train, [(5e-4, link), (5e-3, link)], {"method": "topk"}))
    # The planner learns that rank 1's GPU is slow only after this GPU has compressed.
    assert [plan["compressed_layers"] for plan in slow] == [3, 0, 0]
    fast = alike(on_ranks(2, _train, [(5e-4, link), (5e-4, link)], {"method": "topk"}))
    assert [plan["compressed_layers"] for plan in fast] == [3, 3, 3]


def test_a_link_that_becomes_slow_is_followed() -> None:
    fast = (1e-3, 1e-9)
    plans = alike(on_ranks(2, _train, [fast, fast], {"method": "topk"}, (1e-3, 1e-4)))
    assert [plan["compressed_layers"] for plan in plans] == [0, 3, 3]


def test_plans_that_are_made_aside_know_the_last_step() -> None:
    # All layers must be compressed in every plan, although plans on a thread (``lead``) may come later.
    runs = on_ranks(2, _train, [SLOW_LINK, SLOW_LINK], {"method": "topk", "lead": 2})
    assert all(plan["compressed_layers"] == 3 for plan in alike(runs))


def _first_plan(rank: int) -> dict[str, Any] | None:
    """Only one step is measured, which ends before the thread begins the plan."""
    ddp, state, _ = made(SLOW_LINK, {"method": "topk", "start_iter": 2, "lead": 1})
    train(ddp, rank, range(2))
    if state._planning.under_way is not None:
        state._planning.under_way.exception()
    train(ddp, rank, range(2, 3))
    return state.plan


def test_one_step_is_enough_for_a_plan() -> None:
    first, second = on_ranks(2, _first_plan)
    assert first == second and first is not None and first["measured_seconds"] > 0 and first["compressed_layers"] == 3


def _saved(rank: int, stop: int) -> tuple[Any, Any]:
    """Continues from a saved state, on the device and on the host."""
    options = {"method": "topk"}
    ddp, state, _ = made(SLOW_LINK, options)
    train(ddp, rank, range(stop))
    saved, parameters = state.state_dict(), {name: value.clone() for name, value in ddp.module.state_dict().items()}
    found = []
    for on_device in (True, False):
        ddp, state, _ = made(SLOW_LINK, options) if on_device else _on_host(options)
        ddp.module.load_state_dict(parameters)
        loaded = state.load_state_dict(saved)
        assert loaded.step == stop and str(state.state_dict()) == str(saved)
        train(ddp, rank, range(stop, STEPS))
        assert stayed(state) == on_device
        mass_is_kept(ddp, state, STEPS)
        found.append(state.plan)
    return found[0], found[1]


def _on_host(options: dict[str, Any]) -> tuple[DDP, LGreCoState, None]:
    ddp = DDP(Linear(), bucket_cap_mb=0.005)
    state = LGreCoState(None, ddp, **PLANNED | options)
    ddp.register_comm_hook(state, lgreco_hook)
    return ddp, state, None


@pytest.mark.parametrize("stop", [4, 7, 9])
def test_states_go_on_there_and_on_the_host(stop: int) -> None:
    first, second = on_ranks(2, _saved, stop)
    assert first == second
    assert first[0]["step"] == first[1]["step"] == 12 and first[0]["compressed_layers"] == 3
    assert first[0]["seconds_per_byte"] == pytest.approx(SLOW_LINK[1], rel=0.01)


def _scaled(rank: int) -> tuple[Any, list[Any]]:
    """A GradScaler skips some steps, among them the step before a plan."""
    spoilt, plans = {2: (1, "second"), 6: (0, "third"), 7: (1, "bias"), 13: (1, "first")}, []
    gpu = Clocked(*SLOW_LINK)
    options = PLANNED | {"method": "topk", "start_iter": 3, "on_plan": lambda state: plans.append(state.plan)}
    run = Trained(options | {"_device_of": lambda _: gpu})
    gpu.state = run.state
    run.steps(rank, range(20), spoilt)
    assert run.moved == [step not in spoilt for step in range(20)] and not run.told and stayed(run.state)
    assert residuals(run.state).isfinite().all() and residuals(run.state).any()
    return plans, run.means


def test_a_scaler_skips_steps_and_their_times() -> None:
    (plans, means), (others, _) = on_ranks(2, _scaled)
    assert plans == others and all(plan["compressed_layers"] == 3 for plan in plans) and len(plans) > 2
    assert all(plan["seconds_per_byte"] == pytest.approx(SLOW_LINK[1], rel=0.01) for plan in plans)


def _full(rank: int, step: int) -> tuple[list[Any], list[str], bool]:
    """The planning rank's GPU has no memory from step ``step`` on. The memory for probes was allocated earlier."""
    log, plans, gpu = Lines(), [], Clocked(1e-9, 1e-12)

    def allocate(length: int) -> torch.Tensor:
        if rank == 0 and gpu.state is not None and gpu.state._controller.steps >= step:
            raise torch.OutOfMemoryError("no memory")
        return Imitation.allocate(gpu, length)

    gpu.allocate = allocate  # type: ignore[method-assign]
    ddp = DDP(Linear(), bucket_cap_mb=0.005)
    options = PLANNED | {"method": "topk", "on_plan": lambda state: plans.append(state.plan)}
    state = gpu.state = LGreCoState(None, ddp, **options, _device_of=lambda _: gpu)
    ddp.register_comm_hook(state, lgreco_hook)
    train(ddp, rank, range(STEPS))
    mass_is_kept(ddp, state, STEPS)
    return plans, log.lines, stayed(state)


def test_where_there_is_no_memory_for_trials_costs_are_guessed() -> None:
    (plans, lines, stays), (others, _, _) = on_ranks(2, _full, 3)
    assert stays and plans == others and len(plans) == 3
    assert any(line.startswith("the cost of topk ") and line.endswith("no memory") for line in lines)


def _not_kept(rank: int) -> tuple[list[Any], list[str], bool]:
    """The gradients for trials do not fit in the memory of the planning rank's GPU."""
    from lgreco.torch import times

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def cat(self, _: Any) -> torch.Tensor:
            raise torch.OutOfMemoryError("no memory")

    if rank == 0:
        times.torch = Full()  # type: ignore[attr-defined]
    log, plans, gpu = Lines(), [], Clocked(1e-9, 1e-12)
    ddp = DDP(Linear(), bucket_cap_mb=0.005)
    options = PLANNED | {"method": "topk", "on_plan": lambda state: plans.append(state.plan)}
    state = gpu.state = LGreCoState(None, ddp, **options, _device_of=lambda _: gpu)
    ddp.register_comm_hook(state, lgreco_hook)
    train(ddp, rank, range(STEPS))
    return plans, log.lines, stayed(state)


def test_without_memory_for_gradients_methods_are_not_tried_out() -> None:
    (plans, lines, stays), (others, _, _) = on_ranks(2, _not_kept)
    assert stays and plans == others and len(plans) == 3
    assert any(line.startswith("no trials on a bucket") for line in lines)


def test_where_buckets_have_no_memory_the_hosts_clock_counts() -> None:
    (plans, lines, stays), (others, _, _) = on_ranks(2, _full, 0)
    assert not stays and plans == others and len(plans) == 3 and all(plan["measured_seconds"] > 0 for plan in plans)
    assert any("is copied to the host" in line for line in lines)


def _tried(rank: int, options: dict[str, Any]) -> list[tuple[int | None, str]]:
    """Returns the failure of each trial exchange."""
    ddp, state, _ = made(SLOW_LINK, options)
    assert state._device is not None and state._device.times is not None
    found, times = [], state._device.times
    alone = times._alone

    def looked_at(device: Any, bucket: Any, memory: torch.Tensor, *arguments: Any) -> Any:
        spans = alone(device, bucket, memory, *arguments)
        _, at_fault, error, _ = bucket.fault(to_bytes(times._cuda.part(memory, *bucket.outcome, torch.uint8)))
        found.append((at_fault, str(error)))
        return spans

    times._alone = looked_at  # type: ignore[method-assign]
    train(ddp, rank, range(5))
    return found


@pytest.mark.parametrize("reduce_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", ["qsgd", "powersgd", "hybrid"])
def test_what_is_timed_is_an_exchange_that_does_not_fail(method: str, reduce_dtype: torch.dtype) -> None:
    planning, _ = on_ranks(2, _tried, {"method": method, "reduce_dtype": reduce_dtype})
    assert len(planning) > 0 and set(planning) == {(None, "None")}


def _nodes(rank: int, clock: tuple[float, float]) -> tuple[list[Any], bool]:
    """Trains on two nodes of two ranks. Shards are averaged between the nodes."""
    plans, gpu = [], Clocked(*clock)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    module = torch.nn.Sequential(*[fully_shard(torch.nn.Linear(40, 40), mesh=mesh["shard"]) for _ in range(3)])
    fully_shard(module, mesh=mesh["shard"])
    options = PLANNED | {"method": "topk", "on_plan": lambda state: plans.append(state.plan)}
    state = gpu.state = LGreCoShardedState(
        module, replicate_group=mesh.get_group("replicate"), **options, _device_of=lambda _: gpu  # type: ignore[arg-type]
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(8, 40, generator=generator)
        (module(x) - x.flip(1)).square().mean().backward()
        optimizer.step()
    return plans, stayed(state)  # type: ignore[arg-type]


@pytest.mark.parametrize("clock", [SLOW_LINK, FAST_LINK], ids=["slow link", "slow kernels"])
def test_shards_between_nodes_are_compressed_where_that_pays(clock: tuple[float, float]) -> None:
    found = on_ranks(4, _nodes, clock)
    for shard in range(2):
        (plans, stays), (others, _) = found[shard], found[shard + 2]
        assert stays and plans == others and [plan["step"] for plan in plans] == [4, 8, 12]
        assert all(plan["compressed_layers"] == (3 if clock == SLOW_LINK else 0) for plan in plans)


def _sharded(rank: int, clock: tuple[float, float], method: str) -> tuple[list[Any], bool, list[str]]:
    """Trains with compressed reduce-scatters."""
    log, plans, gpu = Lines(), [], Clocked(*clock)
    mesh = init_device_mesh("cpu", (2,))
    module = torch.nn.Sequential(*[fully_shard(torch.nn.Linear(40, 40), mesh=mesh) for _ in range(3)])
    fully_shard(module, mesh=mesh)
    options = PLANNED | {"method": method, "on_plan": lambda state: plans.append(state.plan)}
    state = gpu.state = LGreCoShardedState(module, **options, _device_of=lambda _: gpu)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(8, 40, generator=generator)
        (module(x) - x.flip(1)).square().mean().backward()
        optimizer.step()
    return plans, stayed(state), log.lines  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["qsgd", "topk"])
@pytest.mark.parametrize("clock", [SLOW_LINK, FAST_LINK], ids=["slow link", "slow kernels"])
def test_shards_are_compressed_where_that_pays(clock: tuple[float, float], method: str) -> None:
    (plans, stays, lines), (others, *_) = on_ranks(2, _sharded, clock, method)
    assert stays and plans == others and [plan["step"] for plan in plans] == [4, 8, 12]
    assert not any("is estimated" in line for line in lines)
    assert all(plan["compressed_layers"] == (3 if clock == SLOW_LINK else 0) for plan in plans)
    assert clock != SLOW_LINK or all(plan["seconds_per_byte"] == pytest.approx(clock[1], rel=0.02) for plan in plans)
