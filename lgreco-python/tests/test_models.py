"""Tests unusual models, and operations on models besides training."""

import copy
import io
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import Linear, gradients
from ranks import on_ranks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco.torch import LGreCoState, OuterStep, lgreco_hook, register
from lgreco.torch.layers import plain_name

OPTIONS: dict[str, Any] = {"method": "topk", "default": 0.1, "start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
STEPS = 9
GIVEN = {"weight": (40, 48), "tied": (40, 48), "frozen": (32, 32), "empty": (0,), "none": (0, 64), "one": (), "filters": (16, 8, 3, 3)}


class Odd(torch.nn.Module):
    """A model whose gradients are given."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in GIVEN.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
        self.tied = self.weight
        self.frozen.requires_grad_(False)  # type: ignore[union-attr, operator]
        self.filters = torch.nn.Parameter(torch.zeros(GIVEN["filters"]).to(memory_format=torch.channels_last))

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum((getattr(self, name) * gradient).sum() for name, gradient in given.items())  # type: ignore[return-value]


def given(rank: int, step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randint(-64, 64, shape, generator=generator) / 64 for name, shape in GIVEN.items()}


def _odd(rank: int, options: dict[str, Any], ddp_options: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Returns the total change of the parameters plus the residuals, and the settings."""
    ddp = DDP(Odd(), **ddp_options)
    state = register(ddp, **{**OPTIONS, **options})
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        ddp(given(rank, step)).backward()
        optimizer.step()
    found = {name: -p.detach() for name, p in ddp.module.named_parameters()}
    for name in state.names:
        left = state.residual(name)
        dist.all_reduce(left)
        found[name] += torch.as_strided(left, found[name].shape, found[name].stride()) / dist.get_world_size()
    return found, state.settings


@pytest.mark.parametrize("options", [{}, {"method": "powersgd", "default": 2}, {"route": "scatter_reduce"}])
@pytest.mark.parametrize("ddp_options", [{}, {"bucket_cap_mb": 1e-6}, {"gradient_as_bucket_view": True}])
def test_nothing_is_lost_of_odd_parameters(options: dict[str, Any], ddp_options: dict[str, Any]) -> None:
    world = 3
    for found, settings in on_ranks(world, _odd, options, ddp_options):
        assert {name for name, setting in settings.items() if setting != "dense"} == {"weight", "filters"}
        assert "tied" not in settings and "frozen" not in settings and not found.pop("frozen").any()
        for name, values in found.items():
            expected = sum(given(rank, step)[name] for rank in range(world) for step in range(STEPS))
            if name == "weight":
                expected = expected + sum(given(rank, step)["tied"] for rank in range(world) for step in range(STEPS))
            torch.testing.assert_close(values, expected / world, atol=1e-3, rtol=1e-4)


class Stored(torch.nn.Module):
    """A matrix that is stored transposed, as some libraries store weights, or a convolution with channels last."""

    def __init__(self, dims: list[int]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(48, 36).t().view(dims))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient).sum()


def _of_rank_one(rank: int, dims: list[int]) -> tuple[float, float]:
    ddp = DDP(Stored(dims))
    state = register(ddp, settings={"weight": "powersgd 1"}, start_iter=2)
    gradient = torch.outer(torch.linspace(1, 2, 36), torch.linspace(-1, 1, 48).sin()).view(dims)
    for _ in range(4):
        ddp.zero_grad()
        ddp(gradient).backward()
    return float((ddp.module.weight.grad - gradient).norm() / gradient.norm()), state.compression_stats()[0]


@pytest.mark.parametrize("dims", [[36, 48], [36, 1, 48]])
def test_a_transposed_matrix_of_rank_one_needs_rank_one(dims: list[int]) -> None:
    for error, ratio in on_ranks(2, _of_rank_one, dims):
        # Two of four steps are uncompressed.
        assert error < 1e-4 and ratio > 1.5


def _ignored(rank: int) -> list[list[str]]:
    def names(ignored: list[str], tied: bool = False, **ddp_options: Any) -> list[str]:
        model = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Linear(40, 40))
        if tied:
            model[1].weight = model[0].weight
        model.register_parameter("own", torch.nn.Parameter(torch.zeros(40)))
        DDP._set_params_and_buffers_to_ignore_for_model(model, ignored)  # type: ignore[no-untyped-call]
        if ddp_options:
            ddp_options = {"delay_all_reduce_named_params": [("0.weight", model[0].weight)], "param_to_hook_all_reduce": model[1].weight}
        ddp = DDP(model, **ddp_options)
        state = register(ddp, **OPTIONS)
        for step in range(STEPS):
            ddp.zero_grad()
            x = torch.randn(8, 40, generator=torch.Generator().manual_seed(100 * step + rank))
            (ddp(x).square().mean() + model.own.sum()).backward()  # type: ignore[operator, union-attr]
        assert state.plan is not None
        return state.names

    return [names(["0.weight"]), names([".own"]), names(["own"]), names([], delayed=True), names(["0.weight"], tied=True)]


def test_layers_are_what_ddp_exchanges() -> None:
    """In DDP's lists, a parameter of the root module is called ".own", and a tied parameter has several names."""
    every = ["own", "0.weight", "0.bias", "1.weight", "1.bias"]
    for part, without, whole, delayed, tied in on_ranks(2, _ignored):
        assert tied == ["own", "0.bias", "1.weight", "1.bias"]
        assert part == delayed == [name for name in every if name != "0.weight"]
        assert without == [name for name in every if name != "own"] and whole == every


def _named(rank: int) -> list[tuple[list[str], Any]]:
    def layers() -> torch.nn.Sequential:
        return torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Linear(40, 40))

    def compiled(module: torch.nn.Module) -> torch.nn.Module:
        return torch.compile(module, backend="eager")  # type: ignore[return-value]

    def wrapped() -> torch.nn.Sequential:
        return torch.nn.Sequential(*[checkpoint_wrapper(layer) for layer in layers()])

    mesh, cpu = init_device_mesh("cpu", (2,)), torch.device("cpu")
    unused = {"find_unused_parameters": True}
    modules = [
        DDP(layers()), DDP(compiled(layers()), **unused), compiled(DDP(layers(), **unused)), DDP(wrapped()),  # type: ignore[arg-type]
        compiled(fully_shard(layers(), mesh=mesh)), fully_shard(wrapped(), mesh=mesh), FSDP(wrapped(), device_id=cpu),
    ]
    states = [register(module, **OPTIONS) for module in modules]
    return [(state.names, getattr(state, "_hold_zeros", None)) for state in states] + [(OuterStep(compiled(layers()))._fragments[0].names, None)]


def test_names_that_end_like_a_wrappers_stay() -> None:
    assert plain_name("_orig_mod.my_orig_mod.weight") == "my_orig_mod.weight"


def test_names_are_those_of_the_model_that_was_wrapped() -> None:
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    for found in on_ranks(2, _named):
        assert [here for here, _ in found] == [names] * 8
        assert [holds for _, holds in found] == [False, True, True, False, None, None, None, None]


def _sparse(rank: int) -> tuple[str, str | None, list[torch.Tensor], tuple[float, int, int]]:
    def model(ignored: list[str] = [], sparse: bool = True) -> DDP:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Embedding(40, 32, sparse=sparse), torch.nn.Linear(32, 8))
        DDP._set_params_and_buffers_to_ignore_for_model(module, ignored)  # type: ignore[no-untyped-call]
        return DDP(module)

    with pytest.raises(LgrecoError) as raised:
        register(model(), **OPTIONS)
    with pytest.raises(LgrecoError) as raised_by_one:
        register(model(sparse=rank == 1), **OPTIONS)
    assert "sparse=True" in str(raised_by_one.value) and (rank == 1 or str(raised_by_one.value).startswith("rank 1 failed: "))
    assert register(model(["0.weight"]), **OPTIONS).names == ["1.weight", "1.bias"]
    plain, ddp = model(), model()
    state = register(ddp, policy="uncompressed")
    for module in (plain, ddp):
        module(torch.arange(5) + rank).sum().backward()
    means = [module.module[0].weight.grad.to_dense() for module in (plain, ddp)]
    return str(raised.value), raised.value.layer, means, state.compression_stats()


def test_sparse_gradients_are_refused_before_training_or_left_to_ddp() -> None:
    for told, layer, (expected, found), (ratio, _, sent) in on_ranks(2, _sparse):
        assert "sparse=True" in told and layer == "0.weight" and torch.equal(expected, found)
        # DDP sends five rows of the embedding with the rows' indices, and the whole linear layer.
        assert ratio == 1.0 and sent == 5 * (32 * 4 + 8) + (32 * 8 + 8) * 4


def _copied(rank: int) -> list[str]:
    ddp = DDP(Linear())
    state = register(ddp, **OPTIONS)
    copying: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, pickle.dumps, lambda it: torch.save(it, io.BytesIO())]
    told = []
    for of in (state, ddp, OuterStep(Linear())):
        for do in copying:
            if of is ddp and do is copy.copy:
                continue
            with pytest.raises(TypeError) as raised:
                do(of)
            told.append(str(raised.value))
    copies = [copy.deepcopy(ddp.module), copy.deepcopy(state.state_dict()), pickle.loads(pickle.dumps(state.state_dict()))]
    assert len(copies) == 3
    return told


def test_states_are_not_copied_and_say_what_is() -> None:
    (found,) = on_ranks(1, _copied)
    assert len(found) == 11 and all("state_dict()" in told and "model.module" in told for told in found)
    assert "LGreCoState belongs" in found[0] and "OuterStep belongs" in found[-1]


def _misused(rank: int) -> list[tuple[type[Exception], str]]:
    ddp, other = DDP(Linear()), DDP(Linear())
    other.register_comm_hook(None, lgreco_hook)
    attempts: list[Callable[[], Any]] = [
        lambda: LGreCoState(ddp, None),  # type: ignore[arg-type]
        lambda: OuterStep(ddp.parameters()),  # type: ignore[arg-type]
        lambda: other(gradients(rank, 0)).backward(),
    ]
    told = []
    for attempt in attempts:
        with pytest.raises((LgrecoError, TypeError)) as raised:
            attempt()
        told.append((type(raised.value), str(raised.value)))
    return told


def test_what_is_not_a_model_or_a_state_is_told() -> None:
    (found,) = on_ranks(1, _misused)
    assert found == [
        (LgrecoError, "model is a NoneType, expected a torch.nn.Module"),
        (LgrecoError, "model is a generator, expected a torch.nn.Module"),
        (TypeError, "lgreco_hook was registered with a NoneType as its state, expected an LGreCoState"),
    ]


def _forked(rank: int) -> int:
    """A thread makes a plan while workers of a DataLoader and a child process begin and end."""
    torch.manual_seed(0)
    ddp = DDP(torch.nn.Linear(32, 32))
    state = register(ddp, **{**OPTIONS, "start_iter": 3}, lead=1)
    for _ in range(2):
        for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 32)), 8, num_workers=2):
            ddp.zero_grad()
            ddp(x).square().mean().backward()
    child = os.fork()
    if child == 0:
        del ddp, state
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert state.last_report is not None
    return status + state.last_report.step


def test_processes_may_be_forked_while_a_state_trains() -> None:
    assert on_ranks(2, _forked) == [7, 7]


def _destroyed(rank: int, folder: str) -> tuple[int, str]:
    """A state outlives its process group. Another state continues from the saved state in a new group."""
    ddp = DDP(Linear())
    state = register(ddp, **OPTIONS)
    for step in range(4):
        ddp(gradients(rank, step)).backward()
    dist.barrier()
    dist.destroy_process_group()
    saved, known = state.state_dict(), state.scalars()
    assert known["lgreco/ratio"] > 1.0
    with pytest.raises(LgrecoError) as raised:
        LGreCoState(None, Linear())
    del ddp, state
    dist.init_process_group("gloo", f"file://{folder}/again", rank=rank, world_size=2)
    ddp = DDP(Linear())
    state = register(ddp, **OPTIONS)
    step = state.load_state_dict(saved).step  # type: ignore[union-attr]
    ddp(gradients(rank, step)).backward()
    return step, str(raised.value)


def test_a_state_outlives_its_group(tmp_path: Any) -> None:
    for step, told in on_ranks(2, _destroyed, str(tmp_path)):
        assert step == 4 and "init_process_group" in told
