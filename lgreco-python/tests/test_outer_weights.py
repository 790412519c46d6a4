"""Tests outer steps after the user has changed the model: loaded weights, unfrozen parameters, copies, and shards."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear
from ranks import on_ranks
from test_outer import TOPK, flat, residuals, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from lgreco import LgrecoError
from lgreco.torch import OuterStep


UNCOMPRESSED: dict[str, Any] = {"policy": "uncompressed", "learning_rate": 1.0, "momentum": 0.0, "feedback_decay": 1.0}


def _given(rank: int, how: str) -> tuple[list[torch.Tensor], str]:
    """The user changes weights after the OuterStep was made. Returns the ranks' parameters before and after the next outer
    steps."""
    model, told = Linear(), ""
    outer = OuterStep(model, every=2, **({**TOPK, "momentum": 0.9} if how == "topk" else UNCOMPRESSED))
    generator = torch.Generator().manual_seed(1 if how != "differing" else 1 + rank)
    weights = {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}
    if how == "late":
        train(model, outer, rank, range(4))
    if how == "copied":
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(weights[name] if rank == 0 else torch.zeros_like(p))
        outer.restart()
    elif how == "partly":
        model.load_state_dict({"second": weights["second"]}, strict=False)
    elif how == "within":
        torch.nn.ModuleDict({"model": model}).load_state_dict({f"model.{name}": values for name, values in weights.items()})
    elif how != "one" or rank == 1:
        model.load_state_dict(weights)
    before = flat(model)
    for at in range(4):
        try:
            outer.step()
        except LgrecoError as error:
            told += f"{at}: {error}\n"
    return [before, flat(model)], told


@pytest.mark.parametrize("how", ["loaded", "topk", "late", "partly", "within", "copied"])
def test_outer_steps_go_on_from_weights_that_were_loaded(how: str) -> None:
    for (before, after), told in on_ranks(2, _given, how):
        assert before.any() and torch.equal(before, after) and told == ""


def _laid_out(rank: int, how: str) -> list[torch.Tensor]:
    """Returns the values of a parameter before and after the OuterStep is made, after an outer step and after a restart."""
    torch.manual_seed(rank)
    if how == "gaps":
        parameter = torch.nn.Parameter(torch.randn(64, 64)[:, :32])
    else:
        parameter = torch.nn.Parameter(torch.randn(32, 64).t() if rank == 1 else torch.randn(64, 32))
    found = [parameter.detach().clone()]
    outer = OuterStep(torch.nn.ParameterList([parameter]), every=1, **UNCOMPRESSED)
    found.append(parameter.detach().clone())
    outer.step()
    found.append(parameter.detach().clone())
    with torch.no_grad():
        parameter.fill_(rank)
        parameter[:, 0] = torch.arange(64.0)
    outer.restart()
    return [*found, parameter.detach().clone()]


@pytest.mark.parametrize("how", ["gaps", "transposed on rank 1"])
def test_parameters_may_have_any_order_in_memory(how: str) -> None:
    (first, *here), (_, *there) = on_ranks(2, _laid_out, how)
    assert all(torch.equal(own, other) for own, other in zip(here, there, strict=True))
    assert torch.equal(first, here[0]) and torch.equal(here[2][:, 0], torch.arange(64.0)) and not here[2][:, 1:].any()


@pytest.mark.parametrize("how", ["differing", "one"])
def test_ranks_that_have_not_loaded_the_same_are_told(how: str) -> None:
    for _, told in on_ranks(2, _given, how):
        assert told.startswith("1: rank 1 and rank 0 have not loaded the same weights since the last outer step")


def _loaded_meanwhile(rank: int) -> list[str]:
    """Only rank 1 loads weights while an outer step is under way. Returns the errors of the next outer steps."""
    model, told = Linear(), []
    outer = OuterStep(model, every=4, delay=3, **TOPK)
    for at in range(20):
        if at == 5 and rank == 1:
            model.load_state_dict({name: torch.ones_like(p) for name, p in model.named_parameters()})
        try:
            train(model, outer, rank, range(at, at + 1))
        except LgrecoError as error:
            told.append(f"{at}: {error}")
    return told


def test_what_is_loaded_while_an_outer_step_is_on_its_way_the_next_one_compares() -> None:
    for told in on_ranks(2, _loaded_meanwhile):
        assert [text.split(" have")[0] for text in told] == [f"{at}: rank 1 and rank 0" for at in (10, 14, 18)]


def _copied(rank: int) -> bool:
    """Loading weights into a copied or unpickled model has no effect on the OuterStep."""
    model = Linear()
    outer = OuterStep(model, every=1, **UNCOMPRESSED)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for other in copies:
        other.load_state_dict({name: torch.ones_like(p) for name, p in model.named_parameters()})
    outer.step()
    return bool(flat(model).any())


def test_copies_of_the_model_may_be_loaded() -> None:
    assert on_ranks(2, _copied) == [False, False]


def _all_refuse(rank: int, how: str) -> bool:
    """Returns whether residuals are unchanged after an outer step that all ranks refuse."""
    model = Linear()
    outer = OuterStep(model, every=2, **TOPK)
    train(model, outer, rank, range(10))
    before = residuals(outer)
    if how == "loaded":
        model.load_state_dict({name: torch.full_like(p, 1.0 + rank) for name, p in model.named_parameters()})
    elif rank == 1:
        model.second = torch.nn.Parameter(torch.ones(SHAPES["second"]))
    with pytest.raises(LgrecoError, match="not loaded the same weights|cannot make the outer step|another parameter in its place"):
        train(model, outer, rank, range(10, 12))
    return bool(before.any()) and torch.equal(before, residuals(outer))


@pytest.mark.parametrize("how", ["loaded", "replaced"])
def test_a_refused_outer_step_leaves_residuals(how: str) -> None:
    assert on_ranks(2, _all_refuse, how) == [True, True]


def _unfrozen(rank: int, how: str) -> list[str]:
    model = Linear()
    model.third.requires_grad_(False)
    # The test keeps no reference to the container or the compiled model, so only the OuterStep keeps it alive.
    whole = {"container": lambda: torch.nn.ModuleList([model]), "compiled": lambda: torch.compile(model)}
    outer, told = OuterStep(whole.get(how, lambda: model)(), every=2, **TOPK), []
    for at in range(6):
        if at == 2 and (rank == 1 or how != "one"):
            if how == "replaced":
                model.second = torch.nn.Parameter(torch.ones(SHAPES["second"]))
            else:
                model.third.requires_grad_(True)
        try:
            outer.step()
        except LgrecoError as error:
            told.append(f"{at}: {error}")
    return told


def test_parameters_that_are_trained_later_are_told_of() -> None:
    for told in on_ranks(2, _unfrozen, "all"):
        assert [text[:10] for text in told] == ["3: third: ", "5: third: "] and "make another" in told[0]
    for told in on_ranks(2, _unfrozen, "compiled"):
        assert [text[:10] for text in told] == ["3: third: ", "5: third: "]
    for told in on_ranks(2, _unfrozen, "container"):
        assert [text[:12] for text in told] == ["3: 0.third: ", "5: 0.third: "]
    for told in on_ranks(2, _unfrozen, "replaced"):
        assert [text[:11] for text in told] == ["3: second: ", "5: second: "]
    elsewhere, here = on_ranks(2, _unfrozen, "one")
    assert here[0].startswith("3: third: ") and elsewhere[0].startswith("3: rank 1 cannot make the outer step")


def _sharded(rank: int, kind: str, rows: int) -> tuple[list[str], bool]:
    """A model is sharded within pairs of ranks, and averaged between the pairs. Returns the errors, and whether the mean is
    right."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model: Any = torch.nn.Sequential(torch.nn.Linear(16, rows), torch.nn.Linear(rows, 16))
    if kind == "fsdp1":
        model = FullyShardedDataParallel(model, process_group=mesh.get_group("shard"), device_id=torch.device("cpu"), use_orig_params=True)
    else:
        fully_shard(model, mesh=mesh["shard"])
    told = []
    for group in (None, mesh.get_group("shard")):
        with pytest.raises(LgrecoError) as raised:
            OuterStep(model, every=1, process_group=group, **UNCOMPRESSED)
        told.append(str(raised.value))
    outer = OuterStep(model, every=2, process_group=mesh.get_group("replicate"), **UNCOMPRESSED)

    def own() -> list[torch.Tensor]:
        return [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]

    alike = True
    for at in range(4):
        model(torch.full((2, 16), float(1 + rank))).square().mean().backward()
        for part in own():
            part.add_(float(1 + rank))
        model.zero_grad()
        expected = [part.clone() for part in own()]
        for part in expected:
            dist.all_reduce(part, group=mesh.get_group("replicate"))
        model(torch.ones(2, 16))  # An evaluation leaves gathered parameters.
        if outer.step():
            alike = alike and all(torch.allclose(part, mean / 2) for part, mean in zip(own(), expected))
            output = model(torch.ones(2, 16)).detach()
            sums = output.clone()
            dist.all_reduce(sums, group=mesh.get_group("replicate"))
            alike = alike and torch.allclose(output, sums / 2)
    return told, alike


@pytest.mark.parametrize(("kind", "rows"), [("fsdp1", 8), ("fsdp1", 7), ("fsdp2", 8), ("fsdp2", 7), ("fsdp2", 1)])
def test_sharded_models_are_averaged_over_ranks_with_the_same_shards(kind: str, rows: int) -> None:
    for rank, (told, alike) in enumerate(on_ranks(4, _sharded, kind, rows)):
        shards = [0, 1] if rank < 2 else [2, 3]
        assert told[0].startswith(f"the model is sharded over ranks {shards}, and process_group, which averages it, has ranks [0, 1, 2, 3]: ")
        assert f"has ranks {shards}: " in told[1] and alike
