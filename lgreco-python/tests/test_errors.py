"""A failure on one rank raises the same exception on all ranks, well within the group's timeout, and training can
continue."""

import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from linear import Linear, gradients
from ranks import TIMEOUT, on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco._lgreco import Bucket
from lgreco.torch import ExchangeError, LGreCoState, OuterStep, collectives, exchange, groups, lgreco_hook, register
from lgreco.torch import step as steps

OPTIONS: dict[str, Any] = {"method": "topk", "default": 0.1, "start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
STEPS, FAILING = 9, 5


def wrapped(kind: str) -> torch.nn.Module:
    if kind == "ddp":
        return DDP(Linear(), bucket_cap_mb=0.005)
    return fully_shard(Linear(), mesh=init_device_mesh("cpu", (2,)))


def step(module: torch.nn.Module, rank: int, at: int) -> torch.Tensor:
    module.zero_grad()
    module(gradients(rank, at)).backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def raised(work: Callable[[], Any]) -> Exception:
    began = time.monotonic()
    with pytest.raises((LgrecoError, ExchangeError)) as found:
        work()
    assert time.monotonic() - began < TIMEOUT.total_seconds() / 4
    return found.value


def no_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError("no room")


class Without:
    """Wraps an object, of which one method fails for lack of memory."""

    def __init__(self, of: Any, name: str) -> None:
        self.of, self.name = of, name

    def __getattr__(self, name: str) -> Any:
        return no_memory if name == self.name else getattr(self.of, name)


class Scant:
    """A bucket whose methods ``names`` fail for lack of memory, once the bucket is opened."""

    def __init__(self) -> None:
        self.of, self.names = Bucket(), [""]

    def __getattr__(self, name: str) -> Any:
        return no_memory if name in self.names else getattr(self.of, name)


class Lending(Without):
    """A controller that lends layers to a ``Scant``."""

    def __init__(self, of: Any, names: list[str], fails: Callable[[list[int]], bool]) -> None:
        super().__init__(of, "")
        self.names, self.fails = names, fails

    def open(self, layers: list[int], bucket: Scant) -> None:
        self.of.open(layers, bucket.of)
        bucket.names = self.names if self.fails(layers) else []

    def close(self, bucket: Scant) -> None:
        self.of.close(bucket.of)


@contextmanager
def scant(state: Any, names: list[str], fails: Callable[[list[int]], bool] = lambda layers: True) -> Iterator[None]:
    """Within this context, the methods ``names`` of a bucket fail for lack of memory if ``fails`` is true for its
    layers."""
    controller = state._controller
    state._controller, steps.Bucket = Lending(controller, names, fails), Scant  # type: ignore[assignment, misc]
    yield
    state._controller, steps.Bucket = controller, Bucket  # type: ignore[misc]


Told = tuple[type[Exception], str, str, list[torch.Tensor], list[torch.Tensor]]


def _without_memory(rank: int, kind: str, first: bool) -> Told:
    """Rank 1 lacks memory for a bucket's gradients."""
    module = wrapped(kind)
    state = register(module, **OPTIONS)
    means, found, kept = [], None, []
    for at in range(STEPS):
        if at != FAILING:
            means.append(step(module, rank, at))
            continue
        before = [state.residual(name) for name in state.names]
        opened: list[list[int]] = []

        def fails(layers: list[int]) -> bool:
            opened.append(layers)
            return rank == 1 and (len(opened) == 1 if first else state.names.index("first") in layers)

        with scant(state, ["submit"], fails):
            found = raised(lambda: step(module, rank, at))
        kept = [torch.equal(state.residual(name), was) for name, was in zip(state.names, before)]
    assert found is not None and any(kept)
    return type(found), str(found), repr(found.__cause__), means, [state.residual(name) for name in state.names]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_rank_without_memory_is_an_error_on_all(kind: str, first: bool) -> None:
    (there, elsewhere, _, means, _), (here, own, cause, others, _) = on_ranks(2, _without_memory, kind, first)
    assert there is here is LgrecoError
    assert own == "MemoryError: no room" and "MemoryError" in cause and elsewhere == "rank 1 failed with error code 7: no memory"
    if kind == "ddp":
        assert all(torch.equal(*pair) for pair in zip(means, others, strict=True))


def _cut_off(rank: int, told: bool) -> tuple[str, bool]:
    """Rank 1 lacks memory to start a collective. Without ``told``, rank 1 even lacks memory to submit a failure, and rank 0 waits
    until the group's short timeout."""
    module = wrapped("ddp")
    state = register(module, **OPTIONS)
    for at in range(FAILING):
        step(module, rank, at)
    before = [state.residual(name) for name in state.names]
    start = exchange.start
    if rank == 1 and told:
        exchange.start = no_memory
    with scant(state, ["submit", "submit_failure"] if rank == 1 and not told else []):
        with pytest.raises(ExchangeError) as found:
            step(module, rank, FAILING)
    exchange.start = start
    return str(found.value), all(torch.equal(state.residual(name), was) for name, was in zip(state.names, before))


@pytest.mark.parametrize("told", [True, False])
def test_a_collective_that_cannot_be_started_takes_the_step_back_on_all(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    import ranks

    monkeypatch.setattr(ranks, "TIMEOUT", TIMEOUT / 20)
    (elsewhere, kept), (here, own_kept) = on_ranks(2, _cut_off, told)
    assert "step 5: a collective has failed" in elsewhere and "no room" in here and kept and own_kept


def _dropped(rank: int) -> bool:
    """A collective fails on both ranks, which then drop their DDP. Returns whether the DDP is freed."""
    module = wrapped("ddp")
    state = register(module, **OPTIONS)
    start = exchange.start
    if rank == 1:
        exchange.start = no_memory
    with contextlib.suppress(ExchangeError):
        step(module, rank, 0)
    exchange.start = start
    freed = weakref.ref(module)
    del module
    gc.collect()
    return freed() is None and len(state.names) > 0


def test_a_ddp_whose_step_has_failed_can_be_dropped() -> None:
    assert on_ranks(2, _dropped) == [True, True]


class Raising(torch.autograd.Function):
    """An identity whose backward pass raises an exception of the user while ``raises`` is set."""

    raises = False

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if Raising.raises:
            raise KeyError("the user's")
        return gradient


class Layers(torch.nn.Module):
    """Two layers. The second layer's gradients are sent before ``Raising``, between the layers, raises."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(40, 40), torch.nn.Linear(40, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(Raising.apply(self.first(x)))  # type: ignore[no-any-return, no-untyped-call]


def _interrupted(rank: int, kind: str, everywhere: bool) -> tuple[str, bool, int]:
    """The user's code raises an exception in the middle of a step. Returns the type of the error, whether residuals are as before
    the step, and the number of steps."""
    model: torch.nn.Module = Layers()
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (2,))
        for part in (model.first, model.second, model):
            fully_shard(part, mesh=mesh)  # type: ignore[arg-type]
    wrapped = model if kind == "fsdp2" else DDP(model, bucket_cap_mb=0.005)
    state = register(wrapped, **OPTIONS, undo=True)

    def step(at: int) -> bool:
        wrapped.zero_grad()
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(100 * at + rank))
        wrapped(x).square().mean().backward()
        return all(p.grad is not None and bool(p.grad.isfinite().all()) for p in wrapped.parameters())

    for at in range(FAILING):
        step(at)
    before = {name: state.residual(name) for name in state.names}
    assert any(values.any() for values in before.values())
    Raising.raises = everywhere or rank == 1
    with pytest.raises((KeyError, ExchangeError)) as found:
        step(FAILING)
    Raising.raises = False
    kept = all(torch.equal(state.residual(name), values) for name, values in before.items()) and bool(state.state_dict())
    if everywhere and kind == "ddp":
        # A new DDP wraps the model, because a DDP cannot continue after an exception in its backward pass.
        del wrapped
        wrapped = DDP(model, bucket_cap_mb=0.005)
        wrapped.register_comm_hook(state, lgreco_hook)
    elif everywhere:
        wrapped.reset_iter_state()  # type: ignore[operator]
    if everywhere:
        assert all([step(at) for at in range(FAILING, STEPS)])
    return type(found.value).__name__, kept, state._controller.steps


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_an_exception_in_the_backward_pass_takes_the_step_back(kind: str) -> None:
    assert on_ranks(2, _interrupted, kind, True) == 2 * [("KeyError", True, STEPS)]


def test_an_exception_on_one_rank_takes_the_step_back_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    import ranks

    monkeypatch.setattr(ranks, "TIMEOUT", TIMEOUT / 20)
    elsewhere, here = on_ranks(2, _interrupted, "ddp", False)
    assert elsewhere == ("ExchangeError", True, FAILING) and here == ("KeyError", True, FAILING)


def _unplanned(rank: int) -> tuple[list[str], int]:
    """Accordion's two settings are not among the candidates, which all have 2-bit values. Returns the errors of the steps."""
    module = wrapped("ddp")
    state = register(module, **OPTIONS, accordion=(0.2, 0.05), widths=[2])
    told = []
    for at in range(6):
        try:
            step(module, rank, at)
        except LgrecoError as error:
            told.append(f"{at}: {error}")
    return told, state._controller.steps


def test_a_plan_that_cannot_be_made_is_an_error_on_all_at_every_step() -> None:
    (here, steps), (elsewhere, other_steps) = on_ranks(2, _unplanned)
    assert len(here) == len(elsewhere) == 4 and steps == other_steps == 2
    assert "chosen, but there are" in here[0] and elsewhere[0].startswith("2: rank 0 failed with error code 24: an option ")


def _misread(rank: int) -> tuple[list[str], torch.Tensor, bool]:
    """Rank 1 receives a damaged plan."""
    module = wrapped("ddp")
    state = register(module, **OPTIONS)
    start, told = collectives.start, []

    def damaging(request: Any, group: Any, memory: Any) -> Any:
        places: list[torch.Tensor] = []

        def noted(*place: Any) -> torch.Tensor:
            places.append(memory(*place))
            return places[-1]

        started = start(request, group, noted)
        if rank == 1 and request.kind == "broadcast":
            started.wait()
            collectives.start = start
            places[0][::7].bitwise_xor_(0x55)
        return started

    collectives.start = damaging
    for at in range(6):
        try:
            means = step(module, rank, at)
        except LgrecoError as error:
            told.append(f"{at}: {error}")
    return told, means, state.plan is not None


def test_a_plan_that_one_rank_cannot_read_is_an_error_on_all_and_made_again() -> None:
    (elsewhere, means, planned), (here, others, _) = on_ranks(2, _misread)
    assert len(elsewhere) == len(here) == 1 and planned and torch.equal(means, others)
    assert elsewhere[0].startswith("2: rank 1 failed with error code ") and here[0].startswith("2: ")


def _planned_aside(rank: int) -> tuple[list[int], torch.Tensor]:
    """The planning thread lacks memory once."""
    steps: list[int] = []
    module = wrapped("ddp")
    state = register(module, on_plan=lambda state: steps.append(state.plan["step"]), **{**OPTIONS, "start_iter": 3, "lead": 1})
    controller = state._controller

    class Once(Without):
        def take_plan_task(self) -> Any:
            task = controller.take_plan_task()
            if task is None:
                return None
            state._controller = controller
            return Without(task, "run")

    state._controller = Once(controller, "")  # type: ignore[assignment]
    for at in range(6):
        means = step(module, rank, at)
        if state._planning.under_way is not None:
            state._planning.under_way.exception()
    return steps, means


def test_planning_aside_that_fails_is_done_again() -> None:
    (steps, means), (others, other_means) = on_ranks(2, _planned_aside)
    assert steps == others == [3] and torch.equal(means, other_means)


def _differing(rank: int) -> list[str]:
    ddp = DDP(Linear())
    told: list[dict[str, Any]] = [
        {"start_iter": 3}, {"period": 5}, {"policy": "uncompressed"}, {"settings": {"first": "topk 7"}},
        {"reduce_dtype": torch.bfloat16}, {"settings": {"first": "topk 7 %"}}, {"method": "top-k"}, {"default": 99.0},
        {"settings": {"fourth": "dense"}}, {"widths": no_memory}, {"settings": ["first"]}, {"grad_scaler": True},
        {"hold_zeros": True},
    ]
    found = [str(raised(lambda: LGreCoState(None, ddp, **OPTIONS | (options if rank == 1 else {})))) for options in told]
    unused = DDP(Linear(), find_unused_parameters=rank == 1)
    none: Any = None if rank == 1 else Linear()
    settings = {"first": f"topk {7 + rank}"}
    found.append(str(raised(lambda: LGreCoState(None, ddp, settings=settings))))
    found += [str(raised(lambda: LGreCoState(None, unused, **OPTIONS))), str(raised(lambda: OuterStep(none)))]
    no_module: Any = None if rank == 1 else ddp
    found.append(str(raised(lambda: LGreCoState(None, no_module, **OPTIONS))))
    sharded, flat = wrapped("fsdp"), FSDP(Linear(), device_id=torch.device("cpu"))
    route = {"route": "scatter_reduce"} if rank == 1 else {}
    found += [str(raised(lambda: register(module, **OPTIONS, **route))) for module in (sharded, flat)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "__version__", f"0.{rank}.7")
        found.append(str(raised(lambda: LGreCoState(None, ddp, **OPTIONS, **({"unheard_of": 3} if rank == 1 else {})))))
    return found


def test_options_that_differ_by_rank_are_named_on_all() -> None:
    elsewhere, here = on_ranks(2, _differing)
    named = ["start_iter", "period", "policy", "settings", "reduce_dtype", "%", 'method is "top-k": unknown method', "99", "fourth", "widths", "settings", "grad_scaler"]
    named += ["hold_zeros is True on rank 1, False on rank 0", "settings is [('first', 'topk 8')] on rank 1"]
    named += ["find_unused_parameters is True on rank 1, False on rank 0"]
    named += ["model is a NoneType"] * 2 + ["route is 'scatter_reduce'"] * 2
    named += ["the version of lgreco is 0.1.7 on rank 1, 0.0.7 on rank 0: install the same version"]
    for name, there, own in zip(named, elsewhere, here, strict=True):
        assert name in own and name in there and "rank 1" in there


def _own_objects(rank: int) -> list[list[str]]:
    """In step 4 on rank 1, one of the user's objects fails: the GradScaler or the optimizer."""

    class Scaler:
        fails = False

        def get_scale(self) -> float:
            if self.fails:
                raise RuntimeError("no scale")
            return 1.0

    told = []
    for kind in ("scale", "rate"):
        scaler, module, found = Scaler(), wrapped("ddp"), []
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        options = {"grad_scaler": scaler} if kind == "scale" else {"optimizer": optimizer, "accordion": (0.2, 0.1), "policy": "accordion", "default": None}
        state = register(module, **{**OPTIONS, **options})
        for at in range(6):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + at)
            if rank == 1 and at == 4:
                scaler.fails, optimizer.param_groups[0]["lr"] = True, "low"
            try:
                step(module, rank, at)
            except LgrecoError as error:
                found.append(f"{at}: {error}")
            scaler.fails = False
        assert state.last_report is not None and state.last_report.outcome == "exchanged"
        told.append(found)
    return told


def test_objects_of_the_user_that_fail_on_one_rank_are_an_error_on_all() -> None:
    elsewhere, here = on_ranks(2, _own_objects)
    for others, own, named in zip(elsewhere, here, ("scale of grad_scaler cannot be read: RuntimeError: no scale", "learning rate"), strict=True):
        assert [told[:2] for told in (*others, *own)] == ["4:", "4:"] and named in own[0], (others, own)


def _scaled(rank: int) -> list[str]:
    """For one step, the scale is so large that residuals of rank 1 overflow."""

    class Scaler:
        scale = 1.0

        def get_scale(self) -> float:
            return self.scale

    scaler, told = Scaler(), []
    module = wrapped("ddp")
    state = register(module, grad_scaler=scaler, **OPTIONS)
    for at in range(6):
        scaler.scale = 1e39 if rank == 1 and at == 4 else 1.0
        try:
            step(module, rank, at)
        except LgrecoError as error:
            told.append(f"{at}: {error}")
    assert state.residual("second").any()
    return told


def test_residuals_that_cannot_follow_a_scale_are_an_error_on_all() -> None:
    (elsewhere,), (here,) = on_ranks(2, _scaled)
    assert elsewhere.startswith("4: rank 1 failed with error code ") and here.startswith("4: ")
