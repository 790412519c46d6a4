"""Tests that gradients are sent late, but never lost or sent twice. The sum of the means plus the mean residual must equal the
sum of the gradients."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients, mean
from ranks import on_ranks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco.torch import LGreCoState, OuterStep, lgreco_hook

WORLD, STEPS = 2, 10
TOPK: dict[str, Any] = {"method": "topk", "default": 0.1, "start_iter": 2, "period": 4, "window": 1}


def make(ddp_options: dict[str, Any] | None = None, **options: Any) -> tuple[DDP, LGreCoState]:
    ddp = DDP(Linear(), bucket_cap_mb=0.005, **(ddp_options or {}))
    state = LGreCoState(None, ddp, **{**TOPK, **options})
    ddp.register_comm_hook(state, lgreco_hook)
    return ddp, state


def step(ddp: DDP, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Runs a backward pass with the given gradients. Returns the means that DDP has computed."""
    ddp.zero_grad()
    ddp(given).backward()
    return {name: p.grad.clone() for name, p in ddp.module.named_parameters() if p.grad is not None}


def add(to: dict[str, torch.Tensor], means: dict[str, torch.Tensor]) -> None:
    for name, value in means.items():
        to[name] = to.get(name, torch.zeros(SHAPES[name])) + value


def total(sums: dict[str, torch.Tensor], state: LGreCoState) -> dict[str, torch.Tensor]:
    """The sum of all means so far plus the mean residual."""
    whole = {}
    for name, shape in SHAPES.items():
        residual = state.residual(name).reshape(shape)
        dist.all_reduce(residual)
        whole[name] = sums[name] + residual / dist.get_world_size()
    return whole


def assert_sum(found: dict[str, torch.Tensor], steps: range, world: int = WORLD) -> None:
    for name in SHAPES:
        torch.testing.assert_close(found[name], sum(mean(world, step, name) for step in steps), atol=1e-4, rtol=1e-4)


def _run(rank: int, ddp_options: dict[str, Any], options: dict[str, Any]) -> dict[str, torch.Tensor]:
    ddp, state = make(ddp_options, **options)
    sums: dict[str, torch.Tensor] = {}
    for at in range(STEPS):
        add(sums, step(ddp, gradients(rank, at)))
    assert any("topk" in setting or "powersgd" in setting for setting in state.settings.values())
    assert state.residual("second").any()
    return total(sums, state)


@pytest.mark.parametrize("options", [{}, {"method": "powersgd", "default": 2}, {"policy": "uniform"}])
@pytest.mark.parametrize("ddp_options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
def test_mass_is_whole(ddp_options: dict[str, Any], options: dict[str, Any]) -> None:
    for found in on_ranks(WORLD, _run, ddp_options, options):
        assert_sum(found, range(STEPS))


def _accumulated(rank: int) -> dict[str, torch.Tensor]:
    ddp, state = make()
    sums: dict[str, torch.Tensor] = {}
    for at in range(0, STEPS, 2):
        ddp.zero_grad()
        with ddp.no_sync():
            ddp(gradients(rank, at)).backward()
        ddp(gradients(rank, at + 1)).backward()
        add(sums, {name: p.grad.clone() for name, p in ddp.module.named_parameters() if p.grad is not None})
    return total(sums, state)


def test_gradients_accumulate_without_synchronisation() -> None:
    for found in on_ranks(WORLD, _accumulated):
        assert_sum(found, range(STEPS))


def _unused(rank: int, ddp_options: dict[str, Any]) -> tuple[dict[str, torch.Tensor], bool]:
    ddp, state = make({"find_unused_parameters": True, **ddp_options})
    sums: dict[str, torch.Tensor] = {}
    for at in range(STEPS):
        given = gradients(rank, at)
        if at == 7:
            del given["second"]  # on no rank: DDP leaves it without a gradient
        if at == 8 and rank == 0 and not ddp_options:  # otherwise DDP needs the same parameters on all ranks
            del given["third"]
        before = state.residual("second")
        means = step(ddp, given)
        assert ("second" in means) == (at != 7)
        assert at != 7 or torch.equal(before, state.residual("second"))
        add(sums, means)
    return total(sums, state), bool(state.residual("second").any())


@pytest.mark.parametrize("ddp_options", [{}, {"skip_all_reduce_unused_params": True}])
def test_parameters_that_are_not_used_keep_their_residual(ddp_options: dict[str, Any]) -> None:
    for found, remembers in on_ranks(WORLD, _unused, ddp_options):
        assert remembers
        for name in SHAPES:
            expected = sum(mean(WORLD, at, name) for at in range(STEPS) if (name, at) != ("second", 7))
            if name == "third" and not ddp_options:
                expected = expected - gradients(0, 8)[name] / WORLD
            torch.testing.assert_close(found[name], expected, atol=1e-4, rtol=1e-4)


def _joined(rank: int) -> dict[str, torch.Tensor]:
    ddp, state = make()
    steps = STEPS if rank == 0 else STEPS - 3
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    with Join([ddp]):
        for at in range(steps):
            optimizer.zero_grad()
            ddp(gradients(rank, at)).backward()
            optimizer.step()
    return total({name: -p.detach() for name, p in ddp.module.named_parameters()}, state)


def test_ranks_may_run_out_of_data() -> None:
    for found in on_ranks(WORLD, _joined):
        for name in SHAPES:
            late = sum(gradients(0, at)[name] for at in range(STEPS - 3, STEPS)) / WORLD
            expected = sum(mean(WORLD, at, name) for at in range(STEPS - 3)) + late
            torch.testing.assert_close(found[name], expected, atol=1e-4, rtol=1e-4)


class Scaler:
    """A GradScaler whose scale the test sets."""

    def __init__(self) -> None:
        self.scale = 4.0

    def get_scale(self) -> float:
        return self.scale


def _scaled(rank: int) -> tuple[dict[str, torch.Tensor], list[int]]:
    scaler = Scaler()
    ddp, state = make(grad_scaler=scaler)
    sums: dict[str, torch.Tensor] = {}
    skipped = []
    for at in range(STEPS):
        given = {name: scaler.scale * value for name, value in gradients(rank, at).items()}
        before = {name: state.residual(name) for name in SHAPES}
        if at == 6 and rank == 1:
            given["second"][3, 4] = float("inf")
        means = step(ddp, given)
        if all(value.isfinite().all() for value in means.values()):
            add(sums, {name: value / scaler.scale for name, value in means.items()})
        else:
            skipped.append(at)
            scaler.scale /= 2
            state.follow_scale()
            assert all(torch.equal(state.residual(name), before[name] / 2) for name in SHAPES)
    whole = total({name: value * scaler.scale for name, value in sums.items()}, state)
    return {name: value / scaler.scale for name, value in whole.items()}, skipped


def test_steps_that_a_loss_scaler_skips_are_taken_back() -> None:
    for found, skipped in on_ranks(WORLD, _scaled):
        assert skipped == [6]
        for name in SHAPES:
            expected = sum(mean(WORLD, at, name) for at in range(STEPS) if at != 6)
            torch.testing.assert_close(found[name], expected, atol=1e-4, rtol=1e-4)


def _amp(rank: int) -> tuple[list[float], list[bool], torch.Tensor]:
    """A gradient overflows on one rank under torch's GradScaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4)
    ddp, state = make(grad_scaler=scaler)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    scales, moved = [], []
    for at in range(STEPS):
        given = gradients(rank, at)
        if at == 6 and rank == 1:
            given["first"][0, 0] = 1e38  # times the scale
        before = ddp.module.second.detach().clone()
        optimizer.zero_grad()
        scaler.scale(ddp(given)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(not torch.equal(before, ddp.module.second))
    state.follow_scale()
    residual = state.residual("second").reshape(SHAPES["second"]) / scaler.get_scale()
    dist.all_reduce(residual)
    return scales, moved, residual / 2 - ddp.module.second.detach()


def _without_its_scaler(rank: int, outer: bool) -> str:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    if outer:
        model = Linear()
        steps = OuterStep(model, every=1, method="topk")
        with torch.no_grad():
            model.second[0, 0] = float("inf") if rank == 1 else 0.0  # type: ignore[index, operator]
        with pytest.raises(LgrecoError) as raised:
            steps.step()
        return str(raised.value)
    ddp, _ = make()
    with pytest.raises(LgrecoError) as raised:
        scaler.scale(ddp({name: 1e38 * value for name, value in gradients(rank, 0).items()})).backward()
    assert raised.value.layer is not None and raised.value.code == 101
    return str(raised.value)


def test_an_overflow_under_a_scaler_that_the_state_has_not_got_says_what_to_do() -> None:
    advice = "; under a GradScaler, whose overflows these may be, make the state with grad_scaler="
    assert all(told.endswith(advice) for told in on_ranks(WORLD, _without_its_scaler, False))
    assert not any("GradScaler" in told for told in on_ranks(WORLD, _without_its_scaler, True))


def test_torchs_scaler_skips_the_same_steps_on_all_ranks() -> None:
    for scales, moved, found in on_ranks(WORLD, _amp):
        assert moved == [at != 6 for at in range(STEPS)]
        assert scales == [8.0] * 3 + [16.0] * 3 + [8.0] * 4
        expected = sum(mean(WORLD, at, "second") for at in range(STEPS) if at != 6)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def _not_finite(rank: int) -> tuple[str, list[str | int | None], dict[str, torch.Tensor]]:
    ddp, state = make()
    sums: dict[str, torch.Tensor] = {}
    told, attributes = "", []
    for at in range(STEPS):
        given = gradients(rank, at)
        if at == 5 and rank == 1:
            given["second"][0, 7] = float("nan")
        try:
            add(sums, step(ddp, given))
        except LgrecoError as error:
            assert at == 5
            told, attributes = str(error), [error.code, error.layer, error.peer, error.peer_code]
    return told, attributes, sums


def test_what_goes_wrong_on_one_rank_is_an_error_on_all() -> None:
    (elsewhere, there, first), (here, own, second) = on_ranks(WORLD, _not_finite)
    assert "rank 1 failed with error code 101" in elsewhere and "make the state with grad_scaler=" in elsewhere
    assert here.startswith("second: ") and "NaN" in here
    assert own == [101, "second", None, None] and there == [81, None, 1, 101]
    assert all(torch.equal(first[name], second[name]) for name in SHAPES)
