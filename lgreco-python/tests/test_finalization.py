"""Tests fully_shard's manual finalization, in which gradients are exchanged after the backward pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from test_errors import OPTIONS
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from lgreco import LgrecoError
from lgreco.torch import LGreCoShardedState, register

STEPS, FAILING = 8, 4

pytestmark = pytest.mark.skipif(not hasattr(FSDPModule, "finalize_backward"), reason="before PyTorch 2.15")


def _sharded(**options: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(3)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    return model, register(model, **OPTIONS, **options)


def _input(rank: int, at: int, microbatch: int = 0) -> torch.Tensor:
    return torch.randn(8, 40, generator=torch.Generator().manual_seed(100 * at + 10 * microbatch + rank))


def _finalize(model: Any, how: str) -> None:
    if how == "async":
        model.finalize_backward(async_op=True).wait()
    elif how != "automatic":
        model.finalize_backward()


def _step(model: Any, rank: int, at: int, how: str, times: float = 1.0) -> torch.Tensor:
    """Runs two backward passes. The second pass exchanges gradients, at once ("automatic", "within") or in
    ``finalize_backward``."""
    model.zero_grad()
    for microbatch in range(2):
        model.set_requires_gradient_sync(how in ("automatic", "within") and microbatch == 1)
        (model(_input(rank, at, microbatch)).square().mean() * times).backward()
    model.set_requires_gradient_sync(True)
    _finalize(model, how)
    return torch.cat([p.grad.to_local().flatten() for p in model.parameters()])


HOWS = ["automatic", "within", "sync", "async"]


def _trained(rank: int, how: str) -> tuple[torch.Tensor, list[int], Any, int, bool]:
    plans: list[int] = []
    model, state = _sharded(on_plan=lambda state: plans.append(state.plan["step"]))
    model.set_manual_backward_finalization(how != "automatic")
    gradients = torch.cat([_step(model, rank, at, how) for at in range(STEPS)])
    return gradients, plans, state.compression_stats(), state.last_report.step, bool(state.state_dict())


def test_a_finalization_is_one_step() -> None:
    expected, *others = ([*on_ranks(2, _trained, how)] for how in HOWS)
    assert [found[1:2] + found[3:] for found in expected] == 2 * [([2, 6], STEPS - 1, True)]
    for how, found in zip(HOWS[1:], others):
        for (gradients, *rest), (those, *of_automatic) in zip(found, expected):
            assert rest == of_automatic, how
            assert torch.equal(gradients, those), how


def _failed(rank: int, how: str) -> tuple[list[str], int, bool, bool]:
    """A gradient of rank 1 is not finite. Returns the errors, the number of steps, whether states can be saved, and whether
    training continues."""
    model, state = _sharded()
    model.set_manual_backward_finalization(True)
    told, saved = [], True
    for at in range(STEPS):
        try:
            gradients = _step(model, rank, at, how, float("inf") if rank == 1 and at == FAILING else 1.0)
        except LgrecoError as error:
            told.append(f"{at}: {error}")
        saved = saved and bool(state.state_dict())
    return told, state._controller.steps, saved, bool(gradients.isfinite().all())


@pytest.mark.parametrize("how", HOWS[1:])
def test_finalization_raises_on_all_ranks_and_training_goes_on(how: str) -> None:
    (elsewhere, *there), (here, *own) = on_ranks(2, _failed, how)
    assert there == own == [STEPS, True, True] and len(elsewhere) == len(here) == 1
    assert elsewhere[0].startswith(f"{FAILING}: rank 1 failed with error code 101") and "gradients must be finite" in here[0]


def _broken_off(rank: int, how: str, is_interrupted: bool) -> list[bool]:
    """The user interrupts a finalization, or resets the iteration before the finalization. Returns whether residuals are as
    before, and whether training continues with the same gradients as without that step."""
    model, state = _sharded(undo=True)
    model.set_manual_backward_finalization(True)
    for at in range(FAILING):
        _step(model, rank, at, how)
    before = [state.residual(name) for name in state.names]
    group = model[0]._get_fsdp_state()._fsdp_param_groups[0]
    post_backward = group.post_backward

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    def finalize(*_: Any) -> None:
        model.reset_iter_state()
        raise KeyboardInterrupt

    # The interrupt comes in the first layer, whose gradients are exchanged last.
    if is_interrupted:
        group.post_backward = interrupted
    else:
        model.finalize_backward = finalize
    with pytest.raises(KeyboardInterrupt):
        _step(model, rank, FAILING, how)
    group.post_backward = post_backward
    model.__dict__.pop("finalize_backward", None)
    kept = [torch.equal(state.residual(name), was) for name, was in zip(state.names, before)]
    model.reset_iter_state()
    goes_on = bool(_step(model, rank, FAILING, how).isfinite().all()) and state._controller.steps == FAILING + 1
    return [any(bool(was.any()) for was in before), all(kept), bool(state.state_dict()), goes_on]


@pytest.mark.parametrize(("how", "is_interrupted"), [("sync", True), ("async", True), ("within", True), ("within", False)])
def test_a_finalization_that_is_broken_off_takes_the_step_back(how: str, is_interrupted: bool) -> None:
    assert on_ranks(2, _broken_off, how, is_interrupted) == 2 * [4 * [True]]


def _inner(rank: int) -> str:
    model = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Linear(40, 40))
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    register(model[0], **OPTIONS)
    model.set_manual_backward_finalization(True)
    model(_input(rank, 0)).square().mean().backward()
    with pytest.raises(LgrecoError) as raised:
        model.finalize_backward()
    return str(raised.value)


def test_a_state_needs_the_module_that_is_finalized() -> None:
    for told in on_ranks(2, _inner):
        assert told.startswith("weight: set_manual_backward_finalization(True) was called on a module that contains the module of")


def _roots(rank: int) -> tuple[int, list[int], str]:
    """The whole model is not sharded, so each of its parts is a root with its own finalization."""
    plans: list[int] = []
    model = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(2)))
    mesh = init_device_mesh("cpu", (2,))
    roots: list[Any] = [fully_shard(part, mesh=mesh) for part in model]
    state = LGreCoShardedState(model, **OPTIONS, on_plan=lambda state: plans.append(state.plan["step"]))
    told = ""
    for at in range(STEPS):
        for root in roots:
            root.set_manual_backward_finalization(True)
        (model(_input(rank, at)).square().mean() * (float("inf") if rank == 1 and at == FAILING else 1.0)).backward()
        handles = [roots[0].finalize_backward(async_op=at % 2 == 0)]
        try:
            handles.append(roots[1].finalize_backward(async_op=at % 2 == 0))
        except LgrecoError as error:
            told += f"{at}: {error}"
        for handle in handles:
            if handle is not None:
                handle.wait()
        model.zero_grad()
    return state._controller.steps, plans, told


def test_several_roots_are_finalized_in_one_step() -> None:
    for steps, plans, told in on_ranks(2, _roots):
        assert (steps, plans) == (STEPS, [2, 6]) and told.startswith(f"{FAILING}: ") and "101" in told + "101" * ("finite" in told)


def _pipelined(rank: int) -> tuple[list[str], int, bool, bool]:
    """Trains a pipeline of two stages on two ranks each. Returns the errors, the number of steps, whether states can be saved,
    and whether the last gradients are finite."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "shard"))
    at_stage = mesh.get_local_rank("stage")
    torch.manual_seed(at_stage)
    model: Any = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Tanh(), torch.nn.Linear(40, 40))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh["shard"])
    state = register(model, **OPTIONS)
    stage = PipelineStage(model, at_stage, 2, torch.device("cpu"), group=mesh.get_group("stage"))
    loss: Callable[..., torch.Tensor] = lambda output, target: (output - target).square().mean()
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss)
    told, gradients = [], torch.zeros(())
    for at in range(STEPS):
        model.zero_grad()
        shard = mesh.get_local_rank("shard")
        x, target = _input(shard, at), _input(shard, at, 1)
        if at == FAILING and shard == 1:
            target[0, 0] = float("inf")
        try:
            schedule.step(x) if at_stage == 0 else schedule.step(target=target)
        except LgrecoError as error:
            told.append(f"{at}: {error}")
        gradients = torch.cat([p.grad.to_local().flatten() for p in model.parameters()])  # type: ignore[union-attr]
    return told, state._controller.steps, bool(state.state_dict()), bool(gradients.isfinite().all())


def test_stages_of_a_pipeline() -> None:
    for told, *rest in on_ranks(4, _pipelined):
        assert len(told) == 1 and told[0].startswith(f"{FAILING}: ") and rest == [STEPS, True, True]
