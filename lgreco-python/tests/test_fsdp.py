"""Tests fully_shard on Gloo, with shards over all ranks or over pairs of ranks."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients, mean
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from lgreco import LgrecoError
from lgreco.torch import LGreCoShardedState, LGreCoState, OuterStep, register

STEPS = 9
OPTIONS: dict[str, Any] = {"start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
SCHEMES: list[dict[str, Any]] = [
    {"method": "topk", "default": 0.1}, {"method": "powersgd", "default": 2}, {"method": "topk", "policy": "uniform"},
]


def train(module: torch.nn.Module, rank: int) -> dict[str, torch.Tensor]:
    """Trains with a learning rate of 1. Returns the total change of the parameters, which is the sum of the means."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        module(gradients(rank, step)).backward()
        optimizer.step()
    return {name: -p.full_tensor().detach() for name, p in module.named_parameters()}


def residual(state: LGreCoShardedState, name: str, world: int) -> torch.Tensor:
    values = state.residual(name)
    dist.all_reduce(values)
    return values / world


def _sharded(rank: int, options: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    module = fully_shard(Linear(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    state = register(module, **OPTIONS, **options)
    assert isinstance(state, LGreCoShardedState)
    found = train(module, rank)
    world = dist.get_world_size()
    for name, values in found.items():
        values += residual(state, name, world)[: values.numel()].reshape(values.shape)  # without the padding at the end
    return found, state.settings


def test_one_rank_trains_as_without_lgreco() -> None:
    ((found, _),) = on_ranks(1, _sharded, {"method": "qsgd"})
    for name in SHAPES:
        expected = sum(mean(1, step, name) for step in range(STEPS))
        torch.testing.assert_close(found[name], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", SCHEMES)
@pytest.mark.parametrize("world", [2, 3])
def test_sharded_mass_is_whole(world: int, options: dict[str, Any]) -> None:
    for found, settings in on_ranks(world, _sharded, options):
        assert any(setting != "dense" for setting in settings.values())
        for name in SHAPES:
            expected = sum(mean(world, step, name) for step in range(STEPS))
            torch.testing.assert_close(found[name], expected, atol=1e-4, rtol=1e-4)


def _replicated(rank: int, options: dict[str, Any]) -> tuple[dict[str, torch.Tensor], int]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    module = fully_shard(Linear(), mesh=mesh["shard"])
    state = LGreCoShardedState(module, replicate_group=mesh.get_group("replicate"), **OPTIONS, **options)
    found = train(module, rank)
    for name, parameter in module.named_parameters():
        own = state.residual(name) / 4
        whole = torch.zeros(2, own.numel())
        whole[mesh.get_local_rank("shard")] = own
        dist.all_reduce(whole)  # of both nodes; then the mean over two
        found[name] += 2 * whole.flatten()[: parameter.numel()].reshape(parameter.shape)
    return found, state.compression_stats()[2]


@pytest.mark.parametrize("options", SCHEMES)
def test_shards_are_compressed_between_nodes(options: dict[str, Any]) -> None:
    all_found = on_ranks(4, _replicated, options)
    for found, sent in all_found:
        assert 0 < sent < STEPS * sum(torch.Size(shape).numel() for shape in SHAPES.values()) * 4 / 2
        for name in SHAPES:
            expected = sum(mean(4, step, name) for step in range(STEPS))
            torch.testing.assert_close(found[name], expected, atol=1e-4, rtol=1e-4)


POLICIES: dict[str, dict[str, torch.dtype]] = {
    "reduced in bfloat16": {"reduce_dtype": torch.bfloat16},
    "computed in bfloat16": {"param_dtype": torch.bfloat16},  # reduced in float32 since PyTorch 2.15
    "both": {"param_dtype": torch.bfloat16, "reduce_dtype": torch.bfloat16},
}


def _layers(rank: int, replicated: bool, compressed: bool, precision: str) -> torch.Tensor:
    """Trains several FSDP modules with gradients in bfloat16. If ``replicated``, the ranks form two nodes of two ranks."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Tanh()) for _ in range(3)])
    policy = MixedPrecisionPolicy(**POLICIES[precision])
    mesh = init_device_mesh("cpu", (2, 2) if replicated else (1, 2), mesh_dim_names=("replicate", "shard"))
    inner = mesh if replicated and not compressed else mesh["shard"]
    for part in model:
        fully_shard(part, mesh=inner, mp_policy=policy)
    fully_shard(model, mesh=inner, mp_policy=policy)
    if compressed and replicated:
        LGreCoShardedState(model, replicate_group=mesh.get_group("replicate"), **OPTIONS, method="qsgd", default=8)
    elif compressed:
        register(model, **OPTIONS, method="qsgd", default=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    loss = torch.zeros(())
    for _ in range(12):
        optimizer.zero_grad()
        x = torch.randn(8, 40, generator=generator)
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("precision", ["both", *(pytest.param(one, marks=pytest.mark.slow) for one in POLICIES if one != "both")])
def test_several_modules_in_bfloat16(replicated: bool, precision: str) -> None:
    """For ``replicated``, the expected gradients come from FSDP's own replication on a mesh of two dimensions."""
    world = 4 if replicated else 2
    plain, compressed = (on_ranks(world, _layers, replicated, compressed, precision) for compressed in (False, True))
    for expected, found in zip(plain, compressed):
        torch.testing.assert_close(found, expected, atol=0.0, rtol=0.02)
        assert found != expected


def _natively_replicated(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    module = fully_shard(Linear(), mesh=mesh)
    told = []
    for options in ({}, {"replicate_group": mesh.get_group("replicate")}):
        with pytest.raises(LgrecoError) as raised:
            register(module, **OPTIONS, **options)
        told.append(str(raised.value))
    return told


def test_replication_by_fsdp_itself_is_refused() -> None:
    for told in on_ranks(2, _natively_replicated):
        assert all("over the inner mesh" in error and "replicate_group" in error for error in told)


def _other_shards(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    module = fully_shard(Linear(), mesh=mesh["shard"])
    crossed = [dist.new_group(ranks) for ranks in ([0, 3], [1, 2])][0 if rank in (0, 3) else 1]
    told = []
    for group in (mesh.get_group("shard"), dist.group.WORLD, crossed):
        with pytest.raises(LgrecoError) as raised:
            LGreCoShardedState(module, replicate_group=group, **OPTIONS)
        told.append(str(raised.value))
    return told


def test_replicas_hold_the_same_shard() -> None:
    for rank, (inside, world, crossed) in enumerate(on_ranks(4, _other_shards)):
        own = [0, 1] if rank < 2 else [2, 3]
        assert inside.startswith(f"replicate_group has ranks {own}, and the module is sharded over ranks {own}")
        assert world.startswith(f"replicate_group has ranks [0, 1, 2, 3], and the module is sharded over ranks {own}")
        assert "the number of the shard that this rank of replicate_group holds is" in crossed


def _not_finite(rank: int) -> list[str]:
    module = fully_shard(Linear(), mesh=init_device_mesh("cpu", (2,)))
    register(module, **OPTIONS)
    told = []
    for step in range(4):
        given = gradients(rank, step)
        if step == 2 and rank == 0:
            given["third"][1, 1] = float("inf")
        try:
            module(given).backward()
        except LgrecoError as error:
            told.append(f"{step}: {error}")
    return told


def test_errors_under_fully_shard() -> None:
    (here,), (elsewhere,) = on_ranks(2, _not_finite)
    assert here.startswith("2: third: ") and "rank 0 failed with error code 101" in elsewhere


def _without_first(step: int) -> tuple[str, ...]:
    """Parameters with a gradient in this step. The first parameter has no gradient in three steps, one of which has a plan."""
    return tuple(SHAPES)[1:] if step in (4, 5, 6) else tuple(SHAPES)


def _partly(rank: int, replicated: bool) -> bool:
    """One parameter has a gradient only in some steps. Returns whether the means and residuals add up to all gradients."""
    mesh = init_device_mesh("cpu", (2, 1) if replicated else (1, 2), mesh_dim_names=("replicate", "shard"))
    module = fully_shard(Linear(), mesh=mesh["shard"])
    group = {"replicate_group": mesh.get_group("replicate")} if replicated else {}
    state = LGreCoShardedState(module, **group, **OPTIONS, method="topk", default=0.1)
    found = {name: torch.zeros(SHAPES[name]) for name in SHAPES}
    expected = {name: torch.zeros(SHAPES[name]) for name in SHAPES}
    for step in range(STEPS):
        module.zero_grad()
        given, before = gradients(rank, step), state.residual("first")
        module({name: given[name] for name in _without_first(step)}).backward()
        assert "first" in _without_first(step) or torch.equal(state.residual("first"), before)
        for name, p in module.named_parameters():
            assert (p.grad is not None) == (name in _without_first(step))
            if p.grad is not None:
                found[name] += p.grad.full_tensor()  # type: ignore[attr-defined]
                expected[name] += mean(2, step, name)
    for name, values in found.items():
        values += residual(state, name, 2)[: values.numel()].reshape(values.shape)
    return all(torch.allclose(found[name], expected[name], atol=1e-4) for name in SHAPES)


@pytest.mark.parametrize("replicated", [False, True])
def test_parameters_without_gradient_are_left_out(replicated: bool) -> None:
    assert on_ranks(2, _partly, replicated) == [True, True]


def _after_reset(rank: int) -> bool:
    """An iteration fails after a backward pass without an exchange between nodes. Its gradients are discarded."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    module = fully_shard(Linear(), mesh=mesh["shard"])
    LGreCoShardedState(module, replicate_group=mesh.get_group("replicate"), settings={})
    if not hasattr(module, "reset_iter_state"):
        return True
    module.set_requires_all_reduce(False)
    module(gradients(rank, 0)).backward()
    module.reset_iter_state()
    module.set_requires_all_reduce(True)
    module(gradients(rank, 1)).backward()
    return all(torch.allclose(p.grad.full_tensor(), mean(2, 1, name), atol=1e-5) for name, p in module.named_parameters())  # type: ignore[union-attr]


def test_gradients_of_an_iteration_that_was_reset_are_forgotten() -> None:
    assert on_ranks(2, _after_reset) == [True, True]


def _untold(rank: int) -> str:
    """Simulates a version of PyTorch in which FSDP does not report which parameters have a gradient."""
    module = fully_shard(Linear(), mesh=init_device_mesh("cpu", (2,)))
    (group,) = module._get_fsdp_state()._fsdp_param_groups
    prepare = group.__dict__.pop("_prepare_reduce_scatter_inputs")
    register(module, **OPTIONS)
    group._prepare_reduce_scatter_inputs = prepare
    module(gradients(rank, 0)).backward()
    module.zero_grad()
    with pytest.raises(LgrecoError) as raised:
        module({"third": gradients(rank, 1)["third"]}).backward()
    return str(raised.value)


def test_parameters_without_gradient_are_an_error_where_fsdp_does_not_tell_of_them() -> None:
    for told in on_ranks(2, _untold):
        assert "first: the unit's 4 parameters have" in told and "fully_shard those" in told


def _unfrozen(rank: int) -> str:
    module = Linear()
    module.third.requires_grad_(False)
    register(fully_shard(module, mesh=init_device_mesh("cpu", (2,))), **OPTIONS)
    module(gradients(rank, 0)).backward()
    module.third.requires_grad_(True)
    with pytest.raises(LgrecoError) as raised:
        module(gradients(rank, 1)).backward()
    return f"{raised.value.layer}; {raised.value}"


def test_parameters_that_are_trained_later_are_named() -> None:
    for told in on_ranks(2, _unfrozen):
        assert told.startswith("third; third: ") and "make another state" in told


def _scaled(rank: int) -> tuple[list[float], bool]:
    """Trains with a GradScaler. In one step, a gradient of rank 1 is not finite. Returns the scales, and whether this step has
    changed any parameter."""
    module = fully_shard(Linear(), mesh=init_device_mesh("cpu", (2,)))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    register(module, **OPTIONS, method="topk", grad_scaler=scaler)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    scales, moved = [], False
    for step in range(6):
        given, before = gradients(rank, step), [p.full_tensor().clone() for p in module.parameters()]  # type: ignore[attr-defined]
        if step == 4 and rank == 1:
            given["third"][0, 0] = float("inf")
        optimizer.zero_grad()
        scaler.scale(module(given)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if step == 4:
            moved = any(not torch.equal(p.full_tensor(), was) for p, was in zip(module.parameters(), before))  # type: ignore[attr-defined]
    return scales, moved


def test_a_scaler_skips_a_step_on_all_ranks() -> None:
    assert on_ranks(2, _scaled) == 2 * [([8.0, 8.0, 8.0, 8.0, 4.0, 4.0], False)]


def _registered(rank: int) -> tuple[bool, str, str]:
    module = DDP(Linear())
    state = register(module, **OPTIONS)
    with pytest.raises(LgrecoError) as raised:
        register(Linear())
    with pytest.raises(LgrecoError) as twice:
        register(module, **OPTIONS)
    return isinstance(state, LGreCoState), str(raised.value), str(twice.value)


def test_register_knows_what_a_module_is() -> None:
    for known, error, twice in on_ranks(2, _registered):
        assert known and "fully_shard" in error
        assert twice.startswith("the DistributedDataParallel has a communication hook, lgreco_hook, and PyTorch allows one: wrap")


def _divided(rank: int, replicated: bool, factor: float | None, summed: bool, compressed: bool) -> list[torch.Tensor]:
    """Twice accumulates gradients over three backward passes. Returns the gradients. With several nodes, only every third pass
    averages between nodes."""
    mesh = init_device_mesh("cpu", (2, 2) if replicated else (1, 4), mesh_dim_names=("replicate", "shard"))
    module = fully_shard(Linear(), mesh=mesh if replicated and not compressed else mesh["shard"])
    state = None
    if compressed:
        group = {"replicate_group": mesh.get_group("replicate")} if replicated else {}
        state = LGreCoShardedState(module, settings={}, **group)
    if summed:
        module.set_force_sum_reduction_for_comms(True)
    if factor is not None:
        module.set_gradient_divide_factor(factor)
    means: list[torch.Tensor] = []
    for step in range(6):
        last = step % 3 == 2
        if replicated:
            module.set_requires_all_reduce(last)
        module(gradients(rank, step)).backward()
        if last:
            means += [p.grad._local_tensor.clone() for p in module.parameters() if p.grad is not None]  # type: ignore[attr-defined]
            module.zero_grad()
    if state is not None:
        assert state._controller.steps == (2 if replicated else 6)
    return means


@pytest.mark.parametrize(
    ("replicated", "factor", "summed"),
    [(True, None, True), (True, 2.0, True), (True, 8.0, True), (True, 3.0, True), (False, 8.0, True), (False, None, True)],
)
def test_factors_and_accumulation_are_those_of_fsdp(replicated: bool, factor: float | None, summed: bool) -> None:
    plain, found = (on_ranks(4, _divided, replicated, factor, summed, compressed) for compressed in (False, True))
    for expected, given in zip(plain, found):
        assert len(expected) == len(given) and any(part.any() for part in expected)
        for one, other in zip(expected, given):
            torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-5)


def _premultiplied(rank: int, replicated: bool) -> list[torch.Tensor]:
    """Simulates a backend that itself divides by the factor of ``set_gradient_divide_factor``, unlike Gloo."""
    mesh = init_device_mesh("cpu", (2, 1) if replicated else (1, 2), mesh_dim_names=("replicate", "shard"))
    module = fully_shard(Linear(), mesh=mesh["shard"])
    LGreCoShardedState(module, settings={}, **({"replicate_group": mesh.get_group("replicate")} if replicated else {}))
    module.set_gradient_divide_factor(4.0)
    module(gradients(rank, 0)).backward()
    return [p.grad.full_tensor() for p in module.parameters() if p.grad is not None]  # type: ignore[attr-defined]


@pytest.mark.parametrize("replicated", [False, True])
def test_a_divide_factor_needs_no_communication_that_multiplies(replicated: bool) -> None:
    for found in on_ranks(2, _premultiplied, replicated):
        for name, values in zip(SHAPES, found, strict=True):
            torch.testing.assert_close(values, mean(2, 0, name) * 2 / 4, atol=1e-6, rtol=1e-5)


def _made_again(rank: int) -> int:
    """Makes several states for a module. Returns how many functions of earlier states the module still calls."""
    module = fully_shard(Linear(), mesh=init_device_mesh("cpu", (2,)))
    for _ in range(3):
        register(module, **OPTIONS)
    module(gradients(rank, 0)).backward()
    (group,) = module._get_fsdp_state()._fsdp_param_groups
    prepare, depth = group._prepare_reduce_scatter_inputs, 0
    while hasattr(prepare, "_of_fsdp"):
        prepare, depth = prepare._of_fsdp, depth + 1
    return depth


def test_a_state_replaces_the_one_before() -> None:
    assert on_ranks(2, _made_again) == [1, 1]


class Checkpointed(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=True)  # type: ignore[no-any-return]


class Blocks(torch.nn.Module):
    """Two layers, of which the second has gradients after each of its ``uses``."""

    def __init__(self, uses: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        kind = torch.nn.Linear if uses == 1 else Checkpointed
        self.first, self.second, self.uses = torch.nn.Linear(40, 40), kind(40, 40), uses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(self.uses):
            x = self.second(x.tanh())
        return x.square().mean()


def _blocks(rank: int, replicated: bool, kind: str) -> None:
    """Compares the sums of means with the sums of a model that is not sharded."""
    mesh = init_device_mesh("cpu", (2, 1) if replicated else (1, 2), mesh_dim_names=("replicate", "shard"))
    uses = 2 if kind == "used twice" else 1
    plain, module = Blocks(uses), Blocks(uses)
    for part in [[module.first, module.second]] if kind == "grouped" else [module.second]:
        fully_shard(part, mesh=mesh["shard"])
    fully_shard(module, mesh=mesh["shard"])
    if kind == "after a forward pass":
        module(torch.ones(8, 40))
    state = LGreCoShardedState(module, **({"replicate_group": mesh.get_group("replicate")} if replicated else {}), **OPTIONS, method="topk", default=0.1)
    assert sorted(state.names) == sorted(name for name, _ in plain.named_parameters())

    def step(at: int, broken: bool = False) -> None:
        module.zero_grad()
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(2 * at + rank))
        (module(x) * (torch.inf if broken else 1.0)).backward()
        if not broken:
            plain(x).backward()

    found = dict.fromkeys(state.names, torch.zeros(()))
    for at in range(STEPS):
        step(at)
        found = {name: found[name] + p.grad.full_tensor() for name, p in module.named_parameters()}  # type: ignore[union-attr]
    assert state._controller.steps == uses * STEPS and "topk" in state.settings["second.weight"]
    for name, p in plain.named_parameters():
        assert p.grad is not None
        dist.all_reduce(p.grad)
        values = found[name] + residual(state, name, 2)[: p.numel()].reshape(p.shape)
        torch.testing.assert_close(values, p.grad / 2, atol=1e-5, rtol=1e-5)
    with pytest.raises(LgrecoError, match=f"^{'first' if kind == 'grouped' else 'second'}.weight: element 0 is"):
        step(STEPS, broken=True)
    step(STEPS + 1)


@pytest.mark.parametrize("kind", ["grouped", "used twice", "after a forward pass"])
@pytest.mark.parametrize("replicated", [False, True])
def test_sums_are_whole_however_modules_are_sharded_and_used(replicated: bool, kind: str) -> None:
    on_ranks(2, _blocks, replicated, kind)


def _outer_after_a_forward_pass(rank: int) -> None:
    module, plain = Linear(), Linear()
    module = fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    module(gradients(rank, 0))
    outer, expected = (OuterStep(of, every=1, policy="uncompressed") for of in (module, plain))
    for at in range(3):
        for of in (module, plain):
            of(gradients(rank, at)).backward()
            torch.optim.SGD(of.parameters(), lr=1.0).step()
            of.zero_grad()
        module(gradients(rank, at))  # an evaluation
        outer.step()
        expected.step()
        assert torch.equal(module(gradients(rank, at)), plain(gradients(rank, at)))


def test_outer_steps_after_a_forward_pass() -> None:
    on_ranks(1, _outer_after_a_forward_pass)


def _unfrozen_unit(rank: int, replicated: bool) -> str:
    mesh = init_device_mesh("cpu", (2, 1) if replicated else (1, 2), mesh_dim_names=("replicate", "shard"))
    module = Blocks(1)
    module.second.requires_grad_(False)
    fully_shard(module.second, mesh=mesh["shard"])
    fully_shard(module, mesh=mesh["shard"])
    LGreCoShardedState(module, **({"replicate_group": mesh.get_group("replicate")} if replicated else {}), **OPTIONS)
    module(torch.ones(8, 40)).backward()
    module.second.requires_grad_(True)
    with pytest.raises(LgrecoError) as raised:
        module(torch.ones(8, 40)).backward()
    return str(raised.value)


@pytest.mark.parametrize("replicated", [False, True])
def test_units_that_are_trained_later_are_named(replicated: bool) -> None:
    for told in on_ranks(2, _unfrozen_unit, replicated):
        assert told.startswith("second.weight: the parameter was frozen when the state was made: make another state")
