"""Tests interrupts by the user anywhere in a step. The step must be undone or complete, and no memory lost or freed too early."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import Linear, gradients
from ranks import on_ranks
from test_errors import OPTIONS, raised, step, wrapped
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import OuterStep, collectives, exchange, lgreco_hook, register


class Interrupting:
    """A controller, of which the user interrupts one method once, at the call or at the return."""

    def __init__(self, of: Any, name: str, after: bool) -> None:
        self.of, self.name, self.after = of, name, after

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.of, name)
        if name != self.name:
            return call

        def interrupted(*arguments: Any) -> Any:
            self.name = ""
            if self.after:
                call(*arguments)
            raise KeyboardInterrupt

        return interrupted


def _stopped_by_the_user(rank: int, where: str, after: bool, again: str | None = None) -> tuple[bool, int, bool]:
    """The user interrupts a step with a plan, and with ``again`` also the undoing of this step. Returns whether residuals are
    as before, the number of steps, and whether all ranks get the same means afterwards."""
    module = wrapped("ddp")
    state = register(module, **OPTIONS, undo=True)
    for at in range(6):
        step(module, rank, at)
    before, controller = [state.residual(name) for name in state.names], state._controller
    assert any(values.any() for values in before)
    state._controller = Interrupting(controller, where, after)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        step(module, rank, 6)
    if again is not None:
        state._controller = Interrupting(controller, again, after)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            state.state_dict()
    state._controller = controller
    kept = all(torch.equal(state.residual(name), was) for name, was in zip(state.names, before)) and bool(state.state_dict())
    module = DDP(module.module, bucket_cap_mb=0.005)
    module.register_comm_hook(state, lgreco_hook)
    means = torch.cat([step(module, rank, at) for at in range(6, 9)])
    least = means.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return kept, controller.steps, torch.equal(means, least)


@pytest.mark.parametrize(
    ("where", "after"),
    [
        ("control", False), ("begin_step", False), ("begin_step", True), ("open", False), ("open", True), ("close", False), ("close", True),
        ("finish_step", False),
    ],
)
def test_an_interrupt_takes_the_step_back(where: str, after: bool) -> None:
    assert on_ranks(2, _stopped_by_the_user, where, after) == 2 * [(True, 9, True)]


@pytest.mark.parametrize(("after", "again"), [(False, "close"), (True, "close"), (True, "abandon_step")])
def test_an_interrupt_while_the_step_is_taken_back_leaves_it_to_be_taken_back(after: bool, again: str) -> None:
    assert on_ranks(2, _stopped_by_the_user, "close" if not after else "open", after, again) == 2 * [(True, 9, True)]


class Scaler:
    """The part of a GradScaler that states use."""

    def __init__(self) -> None:
        self.scale = 4.0

    def get_scale(self) -> float:
        return self.scale


def _rescaled(rank: int, after: bool) -> bool:
    scaler = Scaler()
    module = wrapped("ddp")
    state = register(module, **OPTIONS, grad_scaler=scaler)
    for at in range(6):
        step(module, rank, at)
    before, controller = [state.residual(name) for name in state.names], state._controller
    scaler.scale = 8.0
    state._controller = Interrupting(controller, "follow_scale", after)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        state.follow_scale()
    state._controller = controller
    state.follow_scale()
    return any(values.any() for values in before) and all(torch.equal(state.residual(name), 2 * was) for name, was in zip(state.names, before))


@pytest.mark.parametrize("after", [False, True])
def test_residuals_follow_a_scale_once(after: bool) -> None:
    assert on_ranks(2, _rescaled, after) == 2 * [True]


def test_an_interrupt_after_the_end_of_a_step_leaves_it_taken() -> None:
    assert on_ranks(2, _stopped_by_the_user, "finish_step", True) == 2 * [(False, 10, True)]


def _stopped_at_the_start_of_a_collective(rank: int, outer: bool) -> tuple[list[str], int, bool, bool]:
    """An interrupt comes during the start of a collective, which therefore cannot be waited for. Returns the error texts, the
    number of kept buckets, whether these are open, and whether all ranks get the same means after loading a saved state."""
    model, module = Linear(), wrapped("ddp")
    state: Any = OuterStep(model, every=1, method="topk", default=0.1, min_elements=64) if outer else register(module, **OPTIONS)

    def next_step(at: int) -> torch.Tensor:
        if not outer:
            return step(module, rank, at)
        _learn(model, rank, at)
        state.step()
        return model.second.detach().flatten().clone()  # type: ignore[no-any-return, operator, union-attr]

    for at in range(6):
        next_step(at)
    saved, start = state.state_dict(), exchange.start

    def interrupted(request: Any, group: Any) -> Any:
        start(request, group).wait()
        raise KeyboardInterrupt

    exchange.start = interrupted
    with pytest.raises(KeyboardInterrupt):
        next_step(6)
    exchange.start = start
    told = [str(raised(state.state_dict)) for _ in range(2)]
    lost = [not it.bucket.is_closed for it in exchange._LOST if it.bucket is not None]
    state.load_state_dict(saved, [saved])
    if not outer:
        module = DDP(module.module, bucket_cap_mb=0.005)
        module.register_comm_hook(state, lgreco_hook)
    means = torch.cat([next_step(at) for at in range(6, 9)])
    least = means.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return told, len(lost), all(lost), torch.equal(means, least) and bool(state.state_dict())


@pytest.mark.parametrize("outer", [False, True])
def test_a_bucket_whose_collective_nobody_can_wait_for_is_never_freed(outer: bool) -> None:
    told = 2 * ["an interrupt came while a collective was started: load a saved state"]
    assert on_ranks(2, _stopped_at_the_start_of_a_collective, outer) == 2 * [(told, 1, True, True)]


def _controlled(rank: int) -> list[bool]:
    """For each collective of the agreement before a step, returns whether it uses memory outside the controller."""
    module, start, found = wrapped("ddp"), collectives.start, []
    register(module, **OPTIONS)

    def noting(request: Any, group: Any, memory: Any) -> Any:
        found.append(memory(request.address, request.length, torch.uint8).data_ptr() != request.address)
        return start(request, group, memory)

    collectives.start = noting
    for at in range(6):
        step(module, rank, at)
    return found


def test_what_ranks_say_before_a_step_travels_in_memory_that_outlives_an_interrupt() -> None:
    for found in on_ranks(2, _controlled):
        assert found and all(found)


def _outer_stopped(rank: int) -> tuple[bool, bool, int]:
    """The user interrupts an outer step during its wait for other ranks."""
    model = Linear()
    outer = OuterStep(model, every=1, method="topk", default=0.1, min_elements=64, undo=True)
    for at in range(3):
        _learn(model, rank, at)
        outer.step()
    fragment = outer._fragments[0]
    before, controller = outer.residual("second"), fragment._controller
    fragment._controller = Interrupting(controller, "close", False)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        outer.step()
    fragment._controller = controller
    kept = torch.equal(outer.residual("second"), before) and bool(before.any()) and bool(outer.state_dict())
    for at in range(3, 5):
        _learn(model, rank, at)
        assert outer.step()
    least = model.second.detach().clone()  # type: ignore[operator, union-attr]
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return kept, torch.equal(model.second, least), controller.steps  # type: ignore[arg-type]


class Torn(list[torch.Tensor]):
    """A list of tensors with an interrupt by the user after the first tensor."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield self[0]
        raise KeyboardInterrupt


def _outer_torn(rank: int) -> tuple[list[str], bool]:
    """The user interrupts an outer step after it has updated one of four layers."""
    model = Linear()
    outer = OuterStep(model, every=1, method="topk", default=0.1, min_elements=64)
    for at in range(3):
        _learn(model, rank, at)
        outer.step()
    fragment, saved, told = outer._fragments[0], outer.state_dict(), []
    whole, fragment._velocities = fragment._velocities, Torn(fragment._velocities)
    with pytest.raises(KeyboardInterrupt):
        outer.step()
    fragment._velocities = whole
    for work in (outer.state_dict, outer.step):
        told.append(str(raised(work)))
    outer.load_state_dict(saved, [saved])
    for at in range(3, 5):
        _learn(model, rank, at)
        assert outer.step()
    least = model.second.detach().clone()  # type: ignore[operator, union-attr]
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return told, torch.equal(model.second, least) and bool(outer.state_dict())  # type: ignore[arg-type]


def test_an_outer_step_that_is_half_made_needs_a_saved_state() -> None:
    told = "an interrupt came while an outer step updated the parameters: load a saved state on all ranks (with a delay into a new "
    told += "OuterStep), or call restart() on all"
    assert on_ranks(2, _outer_torn) == 2 * [(2 * [told], True)]


def _learn(model: torch.nn.Module, rank: int, at: int) -> None:
    with torch.no_grad():
        for name, gradient in gradients(rank, at).items():
            getattr(model, name).sub_(gradient)


def test_an_interrupt_takes_the_outer_step_back() -> None:
    assert on_ranks(2, _outer_stopped) == 2 * [(True, True, 5)]


def _between_sending_and_receiving(rank: int) -> list[bool]:
    outer = OuterStep(Linear(), every=2, method="topk")
    (fragment,) = outer._fragments
    receive, under_way = fragment.receive, []

    def interrupted() -> None:
        raise KeyboardInterrupt

    fragment.receive = interrupted  # type: ignore[method-assign]
    outer.step()
    with pytest.raises(KeyboardInterrupt):
        outer.step()
    fragment.receive = receive  # type: ignore[method-assign]
    under_way.append(fragment.has_sent)
    outer.step()
    return [*under_way, fragment.has_sent]


def test_an_outer_step_that_was_interrupted_ends_in_the_next_call() -> None:
    assert on_ranks(1, _between_sending_and_receiving) == [[True, False]]
