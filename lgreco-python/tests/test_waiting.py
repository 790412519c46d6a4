"""Tests hooks of the user that call lgreco_hook and wait for its future in different ways."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import Linear, gradients
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco.torch import LGreCoState, exchange, lgreco_hook

OPTIONS: dict[str, Any] = {"method": "powersgd", "default": 2, "start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
Future = torch.futures.Future[torch.Tensor]
Hook = Callable[[LGreCoState, dist.GradBucket], Future]


def _waits(state: LGreCoState, bucket: dist.GradBucket) -> Future:
    future = lgreco_hook(state, bucket)
    future.wait()
    return future


def _then_waits(state: LGreCoState, bucket: dist.GradBucket) -> Future:
    future = lgreco_hook(state, bucket).then(lambda done: done.value() * 1.0)
    assert future.wait().isfinite().all()
    return future


def _waits_for_all(state: LGreCoState, bucket: dist.GradBucket) -> Future:
    future = lgreco_hook(state, bucket)
    torch.futures.wait_all([future])
    torch.futures.collect_all([future]).wait()
    return future


def _waits_elsewhere(state: LGreCoState, bucket: dist.GradBucket) -> Future:
    future = lgreco_hook(state, bucket)
    thread = threading.Thread(target=future.wait)
    thread.start()
    thread.join()
    return future


def _logs(state: LGreCoState, bucket: dist.GradBucket) -> Future:
    return lgreco_hook(state, bucket)


_LAST: list[Future] = []


def _waits_for_last(state: LGreCoState, bucket: dist.GradBucket) -> Future:
    """Waits for the future of the previous bucket, but only on rank 0."""
    if _LAST and dist.get_rank() == 0:
        _LAST.pop().wait()
    _LAST.append(lgreco_hook(state, bucket))
    return _LAST[-1]


def _trained(rank: int, hooks: list[Hook]) -> list[torch.Tensor]:
    found = []
    for hook in hooks:
        ddp = DDP(Linear(), bucket_cap_mb=0.005)
        ddp.register_comm_hook(LGreCoState(None, ddp, **OPTIONS), hook)
        parts = []
        for at in range(7):
            ddp.zero_grad()
            ddp(gradients(rank, at)).backward()
            parts += [p.grad.flatten().clone() for p in ddp.parameters() if p.grad is not None]
        found.append(torch.cat(parts))
    return found


def test_hooks_may_wait() -> None:
    hooks: list[Hook] = [lgreco_hook, _waits, _then_waits, _waits_for_all, _waits_elsewhere, _waits_for_last]
    for expected, *others in on_ranks(2, _trained, hooks):
        for hook, found in zip(hooks[1:], others, strict=True):
            assert torch.equal(found, expected), hook


def _alone(rank: int) -> torch.Tensor:
    """Only rank 1 has its own hook, which waits."""
    return _trained(rank, [_waits if rank == 1 else lgreco_hook])[0]


def test_one_rank_may_have_a_hook_that_waits() -> None:
    first, second = on_ranks(2, _alone)
    assert torch.equal(first, second)


@pytest.mark.parametrize(("hook", "overlaps"), [(lgreco_hook, True), (_logs, False)])
def test_only_hooks_of_the_users_make_the_backward_pass_wait(hook: Hook, overlaps: bool) -> None:
    for events in on_ranks(2, _order, hook):
        assert (events[:2] == ["start", "start"]) == overlaps


def _order(rank: int, hook: Hook) -> list[str]:
    ddp = DDP(Linear(), bucket_cap_mb=0.005)
    ddp.register_comm_hook(LGreCoState(None, ddp, **OPTIONS), hook)
    for at in range(4):
        ddp(gradients(rank, at)).backward()
    events, go_on, start = [], exchange.HostExchange.go_on, exchange.start

    def started(*arguments: Any) -> Any:
        events.append("start")
        return start(*arguments)

    def going_on(self: exchange.HostExchange) -> bool:
        if self.is_flying():
            events.append("wait")
        return go_on(self)

    exchange.start, exchange.HostExchange.go_on = started, going_on  # type: ignore[method-assign]
    ddp(gradients(rank, 4)).backward()
    exchange.start, exchange.HostExchange.go_on = start, go_on  # type: ignore[method-assign]
    return events


def _reused(rank: int, only: int | None) -> tuple[list[str], torch.Tensor]:
    """A new DDP gets the state of a DDP whose hook did not wait. The new DDP's hook waits, on all ranks or only on rank ``only``.
    Returns the errors, and the last means."""
    model = Linear()
    first = DDP(model, bucket_cap_mb=0.005)
    state = LGreCoState(None, first, **OPTIONS)
    first.register_comm_hook(state, lgreco_hook)
    for at in range(3):
        first(gradients(rank, at)).backward()
    second = DDP(model, bucket_cap_mb=0.005)
    second.register_comm_hook(state, _waits if only in (None, rank) else lgreco_hook)
    told = []
    for at in range(3, 7):
        second.zero_grad()
        try:
            second(gradients(rank, at)).backward()
        except LgrecoError as error:
            told.append(f"{at}: {error}")
            assert not any(p.grad.any() for p in second.parameters() if p.grad is not None)
    return told, torch.cat([p.grad.flatten() for p in second.parameters() if p.grad is not None])


@pytest.mark.parametrize("only", [None, 1])
def test_a_state_may_get_a_hook_that_waits_later(only: int | None) -> None:
    (elsewhere, means), (here, others) = on_ranks(2, _reused, only)
    assert torch.equal(means, others) and means.any()
    assert [text[:3] for text in elsewhere] == [text[:3] for text in here] == ["3: "]
    assert here[0].startswith("3: your own hook calls lgreco_hook")
    assert only is None or elsewhere[0].startswith("3: rank 1 failed with error code ")


def _steps_in_its_hook(rank: int) -> tuple[list[str], torch.Tensor]:
    """The user's hook updates parameters as soon as the means arrive. A gradient of rank 1 is not finite. Returns the errors,
    and the parameters after each step."""
    ddp, told, trained = DDP(Linear(), bucket_cap_mb=0.005), [], []

    def learning(state: LGreCoState, bucket: dist.GradBucket) -> Future:
        parameters, parts = bucket.parameters(), bucket.gradients()

        def learn(done: Future) -> torch.Tensor:
            with torch.no_grad():
                for p, part in zip(parameters, parts):
                    p.sub_(part)
            return done.value()

        return lgreco_hook(state, bucket).then(learn)

    ddp.register_comm_hook(LGreCoState(None, ddp, **OPTIONS), learning)
    for at in range(6):
        given = gradients(rank, at)
        if at == 4 and rank == 1:
            given["second"][0, 0] = float("inf")
        try:
            ddp(given).backward()
        except LgrecoError as error:
            told.append(f"{at}: {error}")
        trained += [p.detach().flatten().clone() for p in ddp.parameters()]
        ddp.zero_grad()
    return told, torch.cat(trained)


def test_a_hook_gets_zeros_on_all_ranks_if_a_bucket_fails() -> None:
    (elsewhere, parameters), (here, others) = on_ranks(2, _steps_in_its_hook)
    assert [text[:3] for text in elsewhere] == [text[:3] for text in here] == ["4: "]
    assert torch.equal(parameters, others) and parameters.isfinite().all()
