"""Tests the user's own hooks around lgreco_hook, which wait for its future in different ways."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import Linear, gradients
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel as DDP

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
