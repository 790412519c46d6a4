"""Tests that refusals name the option or the layer in the user's terms."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients
from ranks import on_ranks
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco.torch import LGreCoFSDP1State, LGreCoShardedState, LGreCoState, OuterStep, lgreco_hook, register

OPTIONS: dict[str, Any] = {"method": "topk", "default": 0.1, "start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
CPU = torch.device("cpu")

WRONG: list[tuple[dict[str, Any], str]] = [
    *[({"start_iter": start}, f"start_iter is {start}, expected a whole number of at least 2") for start in (-1, 0, 1, 2.5)],
    ({"lead": 500}, "lead is 500, expected fewer steps than start_iter and period"),
    ({"random_seed": -1}, "random_seed is -1, expected a whole number"),
    ({"seed": 3}, "no option is called \"seed\"; .*random_seed.*grad_scaler"),
    ({"loss_scaling": True}, "no option is called \"loss_scaling\""),
    ({"residual_dtype": torch.float64}, "residual_dtype is torch.float64, expected torch.float32, torch.bfloat16, torch.int8"),
    ({"residual_dtype": "int8"}, "residual_dtype is 'int8', expected torch.float32"),
    ({"reduce_dtype": torch.float16}, "reduce_dtype is torch.float16, expected torch.float32, torch.bfloat16"),
    ({"budget": -1}, "budget is -1, expected \"size\", \"error\" or a number of bits"),
    ({"budget": 1.5}, "budget is 1.5, expected"),
    ({"budget": 1}, "budget is 1 bit, expected at least [0-9]{3,}"),
    ({"policy": "kmeans", "budget": 0}, "budget is 0 bits, expected at least"),
    ({"accordion": (1,)}, r"accordion is \(1,\), expected two numbers, or four"),
    ({"default": "1%"}, "default is '1%', expected a number"),
    ({"error_feedback": "no"}, "error_feedback is 'no', expected True or False"),
    ({"undo": 1}, "undo is 1, expected True or False"),
    ({"settings": ["first"]}, r"settings is \['first'\], expected a setting per name"),
    ({"grad_scaler": True}, "grad_scaler is True, expected a torch.amp.GradScaler"),
    ({"grad_scaler": torch.amp.GradScaler}, "grad_scaler is <class .*, expected a torch.amp.GradScaler"),
    ({"route": "allgather"}, "route is 'allgather', expected \"all_gather\", \"scatter_reduce\" or \"two_level\""),
    ({"hold_zeros": "no"}, "hold_zeros is 'no', expected True, False or None"),
    ({"settings": {"module.first": "qsgd 4"}, "method": None, "default": None}, "settings for 'module.first', .* it is called 'first'"),
    ({"optimizer": 3}, "optimizer is 3, expected a torch.optim.Optimizer"),
    ({"settings": {"first": "qsgd 4"}}, "method is \"topk\" beside settings, which are instead of it"),
    ({"settings": {}, "method": None, "default": None, "policy": "uniform"}, "policy is \"uniform\" beside settings"),
    ({"settings": {"first": "qsgd 4"}, "method": None, "default": None, "policy": "uncompressed"}, "policy is \"uncompressed\" beside settings"),
    ({"settings": {"first": 5}}, "^first: the setting is 5"),
    ({"settings": {"first": "topk"}}, "^first: setting: found"),
    ({"settings": {"first": "topk 999999999"}}, "^first: .*999999999"),
]


def _messages(rank: int, attempts: list[Callable[[], Any]]) -> list[tuple[str, str | None, int | None]]:
    told = []
    for attempt in attempts:
        with pytest.raises(LgrecoError) as raised:
            attempt()
        told.append((str(raised.value), raised.value.layer, raised.value.code))
    return told


def _options(rank: int) -> list[tuple[str, str | None, int | None]]:
    model = Linear()
    return _messages(rank, [lambda options=options: LGreCoState(None, model, **OPTIONS | options) for options, _ in WRONG])


def test_options_are_named_with_what_is_expected() -> None:
    (found,) = on_ranks(1, _options)
    for (options, expected), (told, layer, code) in zip(WRONG, found, strict=True):
        assert re.search(expected, told), (options, told)
        assert layer == ("first" if told.startswith("first: ") else None)
        assert (code is not None) == ("topk" in str(options.get("settings"))), told


def test_errors_have_a_layer_and_a_code_whoever_raises_them() -> None:
    error = LgrecoError("x")
    assert [error.code, error.layer, error.peer, error.peer_code] == [None] * 4


OUTER: list[tuple[dict[str, Any], str]] = [
    ({"learning_rate": -1}, "learning_rate is -1, expected a number above 0"),
    ({"learning_rate": "1"}, "learning_rate is '1', expected"),
    ({"every": 0}, "every is 0, expected a whole number of at least 1"),
    ({"every": 2.5}, "every is 2.5, expected a whole number"),
    ({"fragments": 0}, "fragments is 0, expected 1 to 4"),
    ({"delay": 30}, "delay is 30, expected 0 to 29"),
    ({"settings": ["first"]}, "settings is "),
    ({"start_iter": 0}, "start_iter is 0, expected a whole number of at least 2"),
    ({"settings": {"first": "qsgd 4"}, "method": "topk"}, "method is \"topk\" beside settings"),
    *[({"route": route}, f"route is {route!r}, expected \"all_gather\" or \"scatter_reduce\"") for route in ("two_level", "allgather")],
    ({"lr": 0.1}, "no option is called \"lr\"; there are process_group, every, learning_rate, "),
    *[({"forget_moved": True, name: value}, f"forget_moved is True, which has no effect beside {name}={value!r}") for name, value in [
        ("method", "qsgd, eden"), ("policy", "uncompressed"), ("error_feedback", False), ("settings", {"first": "qsgd 4"}), ("settings", {}),
    ]],
]


def _outer(rank: int) -> list[str]:
    module = Linear()
    outer = OuterStep(module, every=2, method="topk")
    state = LGreCoState(None, module, **OPTIONS)
    attempts: list[Callable[[], Any]] = [lambda options=options: OuterStep(module, **options) for options, _ in OUTER]
    attempts += [
        lambda: OuterStep(torch.nn.Sequential()),
        lambda: outer.residual("nope"),
        lambda: state.residual("nope"),
        lambda: LGreCoState(None, module, policy="uncompressed").metrics_line(),
        lambda: outer.load_state_dict(module.state_dict()),
        lambda: state.load_state_dict(module.state_dict()),
        lambda: LGreCoFSDP1State(module),  # type: ignore[arg-type]
        lambda: LGreCoState(None, Linear(torch.float64)),
        lambda: LGreCoState(None, Linear().to("meta")),
        lambda: OuterStep(Linear().to("meta")),
        lambda: LGreCoState(None, torch.nn.Sequential(torch.nn.LazyLinear(4))),
        lambda: OuterStep(torch.nn.Sequential(torch.nn.LazyLinear(4))),
        lambda: LGreCoState("gloo", module),  # type: ignore[arg-type]
        lambda: LGreCoState("gloo", DDP(module)),  # type: ignore[arg-type]
        lambda: OuterStep(module, process_group="gloo"),  # type: ignore[arg-type]
        lambda: OuterStep(DDP(module)),
    ]
    return [told for told, _, _ in _messages(rank, attempts)]


def test_outer_steps_and_states_refuse_in_words() -> None:
    (found,) = on_ranks(1, _outer)
    expected = [words for _, words in OUTER]
    expected += ["no trainable parameters", "no layer is called 'nope'", "no layer is called 'nope'", "policy is 'uncompressed', which leaves"]
    expected += ["state_dict() has returned", "state_dict() has returned", "found a Linear, expected a model in FullyShardedDataParallel"]
    expected += ["first: the parameter is torch.float64", *["first: the parameter is on the meta device"] * 2]
    expected += ["0.weight: the parameter is of a lazy module, and has no shape: run a forward pass"] * 2
    expected += ["process_group is 'gloo', expected a process group"] * 3
    expected += ["model is a DistributedDataParallel, which averages gradients in every step"]
    for words, told in zip(expected, found, strict=True):
        assert words in told, told


def _lazy_on_one(rank: int) -> list[str]:
    model = torch.nn.LazyLinear(4) if rank == 1 else torch.nn.Linear(4, 4)
    return [told for told, _, _ in _messages(rank, [lambda: LGreCoState(None, model), lambda: OuterStep(model)])]


def test_a_lazy_module_on_one_rank_is_an_error_on_all() -> None:
    for told in sum(on_ranks(2, _lazy_on_one), []):
        assert "weight: the parameter is of a lazy module" in told


def _hooked(rank: int) -> list[str]:
    """DDP itself has registered a communication hook, or will register one in its first forward pass."""
    later, mixed, now = DDP(Linear()), DDP(Linear()), DDP(Linear())
    for ddp in (later, now):
        _apply_optimizer_in_backward(torch.optim.SGD, ddp.module.parameters(), {"lr": 0.1})
    for ddp in (mixed, now):
        ddp.register_comm_hook(None, allreduce_hook)
    mixed.mixed_precision = object()  # DDP accepts this option only on GPUs.
    attempts = [lambda: register(later), lambda: register(mixed), lambda: register(now), lambda: LGreCoState(None, later)]
    return [told for told, _, _ in _messages(rank, attempts)]


def test_a_hook_that_ddp_registers_itself_is_told_of() -> None:
    later, mixed, now, state = on_ranks(1, _hooked)[0]
    assert later == state and later.startswith("first: the parameter has an optimizer by _apply_optimizer_in_backward")
    assert "allreduce_hook, and PyTorch allows one: DistributedDataParallel itself has registered it for mixed_precision" in mixed
    assert "DistributedDataParallel itself has registered it for _apply_optimizer_in_backward" in now


def _in_groups(rank: int) -> list[str]:
    alone = [dist.new_group([of]) for of in range(2)][rank]
    assert register(DDP(Linear()), process_group=dist.group.WORLD, **OPTIONS)._group.size() == 2
    attempts = [lambda group=group: register(DDP(Linear()), process_group=group) for group in (alone, "gloo")]
    return [told for told, _, _ in _messages(rank, attempts)]


def test_register_accepts_only_the_group_of_ddp() -> None:
    for rank, (other, none) in enumerate(on_ranks(2, _in_groups)):
        assert other == f"process_group has ranks [{rank}], the group over which DDP averages has [0, 1]"
        assert none.startswith("process_group is 'gloo', expected a process group")


def _changed(rank: int) -> list[tuple[str, str | None, int | None]]:
    """The user changes models after the state was made."""

    def after(model: torch.nn.Module, change: Callable[[torch.nn.Module], Any], given: Any) -> None:
        state = LGreCoState(None, model, **OPTIONS)
        change(model)
        ddp = DDP(model)
        ddp.register_comm_hook(state, lgreco_hook)
        ddp(given).sum().backward()

    def frozen_in_ddp() -> None:
        ddp = DDP(Linear(), find_unused_parameters=True)
        ddp.module.second.requires_grad_(False)
        register(ddp, **OPTIONS)
        ddp(gradients(0, 0)).backward()

    def cast() -> None:
        ddp = DDP(Linear())
        ddp.register_comm_hook(LGreCoState(None, ddp, **OPTIONS), bf16_compress_wrapper(lgreco_hook))  # type: ignore[arg-type]
        ddp(gradients(0, 0)).backward()

    frozen = Linear()
    frozen.second.requires_grad_(False)
    sparse = torch.nn.Embedding(40, 40, sparse=True)
    return _messages(rank, [
        lambda: after(frozen, lambda model: model.second.requires_grad_(True), gradients(0, 0)),  # type: ignore[union-attr,operator]
        lambda: after(Linear(), torch.nn.Module.bfloat16, gradients(0, 0)),
        lambda: after(sparse, lambda _: None, torch.arange(5)),
        frozen_in_ddp,
        cast,
    ])


def test_what_has_changed_since_the_state_was_made_is_named() -> None:
    ((frozen, _, _), (other, layer, _), (sparse, of, _), (frozen_in_ddp, _, _), (cast, _, _)) = on_ranks(1, _changed)[0]
    assert frozen.startswith("second: ") and "was not trainable when the state was made" in frozen
    assert layer in SHAPES and "the gradient is torch.bfloat16, and the parameter was torch.float32" in other
    assert of == "weight" and "sparse" in sparse
    assert "the gradient is torch.bfloat16, and the parameter is torch.float32: register lgreco_hook itself" in cast
    assert frozen_in_ddp.startswith("second: ") and "it is frozen: freeze it before DDP(model)" in frozen_in_ddp


def _other_models(rank: int) -> list[tuple[str, str | None, int | None]]:
    mesh = init_device_mesh("cpu", (2,))
    nodes = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))

    def renamed() -> Linear:
        model = Linear()
        if rank == 1:
            model.register_parameter("fourth", model._parameters.pop("third"))
        return model

    def frozen() -> Linear:
        model = Linear()
        model.second.requires_grad_(rank == 0)
        return model

    def reshaped() -> Linear:
        model = Linear()
        model.second = torch.nn.Parameter(torch.zeros(64, 40 + rank))
        return model

    group = nodes.get_group("replicate")
    return _messages(rank, [
        lambda: LGreCoState(None, renamed(), **OPTIONS),
        lambda: register(FSDP(renamed(), device_id=CPU), **OPTIONS),
        lambda: register(fully_shard(renamed(), mesh=mesh), **OPTIONS),
        lambda: LGreCoShardedState(fully_shard(renamed(), mesh=nodes["shard"]), replicate_group=group, **OPTIONS),
        lambda: OuterStep(renamed(), every=2),
        lambda: LGreCoState(None, reshaped(), **OPTIONS),
        lambda: OuterStep(reshaped(), every=2),
        lambda: OuterStep(frozen(), every=2),
    ])


def test_the_first_layer_that_differs_between_ranks_is_named() -> None:
    elsewhere, here = on_ranks(2, _other_models)
    assert elsewhere == here
    for told, layer, _ in here[:5]:
        assert layer == "third" and "layer 3 is fourth, " in told and "on rank 1, third, " in told
    for told, layer, _ in here[5:7]:
        assert layer == "second" and "[64, 41] of torch.float32, on rank 1, second, [64, 40]" in told
    assert here[7][1] == "second" and "layer 2 is third, " in here[7][0]


IDLE: list[tuple[dict[str, Any], str]] = [
    *[
        ({"policy": policy, **option}, f"{name} is .*, which has no effect beside policy='{policy}'")
        for policy in ("uniform", "uncompressed")
        for name, option in {
            "widths": {"widths": [4]}, "metric": {"metric": "l2"}, "alpha": {"alpha": 2.0}, "candidates": {"candidates": (2, 8, 1)},
            "budget": {"budget": "error"}, "objective": {"objective": "seconds"}, "workers": {"workers": 4}, "lead": {"lead": 1},
            "clusters": {"clusters": 3}, "accordion": {"accordion": (0.2, 0.1)}, "legacy": {"legacy": ([2000], [[0.4, 0.2]], 8)},
        }.items()
    ],
    *[({"policy": "uncompressed", name: value}, f"{name} is .*, which has no effect beside policy='uncompressed'") for name, value in [
        ("method", "topk"), ("default", 6), ("min_elements", 64), ("ramp_up", (0.5, 8)), ("metrics_every", 2), ("on_plan", print),
        ("residual_dtype", torch.int8), ("route", "scatter_reduce"),
    ]],
    *[({"settings": {}, name: value}, f"{name} is .*, which has no effect beside settings=") for name, value in [
        ("default", 6), ("budget", "error"), ("ramp_up", (0.5, 8)), ("widths", [4]), ("min_elements", 64), ("clusters", 2), ("lead", 1), ("metric", "l2"),
        ("candidates", (2, 8, 1)), ("alpha", 2.0), ("accordion", (0.2, 0.1)),
    ]],
    ({"policy": "accordion", "accordion": (0.2, 0.1), "method": "topk", "default": 0.1}, "default is 0.1, which has no effect"),
    ({"policy": "legacy", "legacy": ([2000], [[0.4, 0.2]], 8), "method": "topk", "budget": 9999999}, "budget is 9999999, which has no effect"),
    ({"clusters": 3}, "clusters is 3, which has no effect beside policy='lgreco': .* 'kmeans'"),
    ({"legacy": ([2000], [[0.4, 0.2]], 8)}, "legacy is .*, which has no effect beside policy='lgreco'"),
    ({"optimizer": torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)}, "optimizer is 'SGD', which has no effect beside no accordion="),
    ({"method": "qsgd", "residual_dtype": torch.int8}, "residual_dtype is torch.int8, which has no effect beside method='qsgd'"),
    ({"method": "topk", "error_feedback": False, "residual_dtype": torch.int8}, "residual_dtype is .*error_feedback=False"),
    ({"method": "powersgd", "route": "scatter_reduce"}, "route is 'scatter_reduce', which has no effect beside method='powersgd'"),
    ({"route": "sharded"}, "route is 'sharded', expected \"all_gather\", \"scatter_reduce\" or \"two_level\""),
]  # fmt: skip
SOUND: list[dict[str, Any]] = [
    {"policy": "uniform", "budget": "size", "objective": "bits", "lead": 0, "start_iter": 2, "period": 4, "window": 1},
    {"policy": "uncompressed", "start_iter": 2, "period": 4, "window": 1, "random_seed": 7, "error_feedback": False},
    {"settings": {}, "metrics_every": 1, "residual_dtype": torch.int8, "on_plan": print},
    {"policy": "kmeans", "clusters": 2, "method": "topk", "widths": ["full"], "metric": "l2", "budget": "error", "alpha": 0.5},
    {"policy": "accordion", "accordion": (0.2, 0.1), "method": "topk", "lead": 1},
    {"accordion": (8, 4), "method": "qsgd", "optimizer": torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)},
    {"method": "qsgd", "route": "scatter_reduce"},
    {"policy": "paper", "method": "topk", "default": 0.1, "widths": ["full"], "min_elements": 64, "ramp_up": (0.5, 8), "lead": 1, "metric": "l2",
     "budget": "size", "alpha": 0.5, "candidates": (0.02, 0.2, 0.02), "metrics_every": 2, "residual_dtype": torch.bfloat16, "on_plan": print},
    *[{"method": method, "residual_dtype": torch.int8} for method in ("powersgd", "sidco", "hard-threshold", "adacomp", "clt-k", "qsgd,topk")],
]


def _idle(rank: int) -> list[str]:
    model = Linear()
    for options in SOUND:
        LGreCoState(None, model, **options)
    return [told for told, _, _ in _messages(rank, [lambda options=options: LGreCoState(None, model, **options) for options, _ in IDLE])]


def test_options_without_effect_are_refused() -> None:
    (found,) = on_ranks(1, _idle)
    for (options, expected), told in zip(IDLE, found, strict=True):
        assert re.search(expected, told), (options, told)


def _later(rank: int) -> None:
    state, outer = LGreCoState(None, Linear(), **OPTIONS), OuterStep(Linear(), every=3)
    for of, name in ((state, "period"), (state, "settings"), (state, "hold_zeros"), (state, "grad_scaler"), (outer, "every"), (outer, "learning_rate")):
        with pytest.raises(AttributeError, match=f"{name} is an option of {type(of).__name__}, and cannot change afterwards"):
            setattr(of, name, 3)
    assert outer.every == 3


def test_options_that_are_set_afterwards_are_refused() -> None:
    on_ranks(1, _later)


def _routes(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    flat, sharded = FSDP(Linear(), device_id=CPU), fully_shard(Linear(), mesh=init_device_mesh("cpu", (2,)))
    nodes = fully_shard(Linear(), mesh=mesh["shard"])
    told = [told for told, _, _ in _messages(rank, [
        lambda: register(flat, route="scatter_reduce"),
        lambda: register(sharded, route="all_gather"),
        lambda: LGreCoShardedState(nodes, replicate_group=mesh.get_group("replicate"), route="sharded"),
    ])]
    with pytest.raises(TypeError) as raised:
        flat.register_comm_hook(None, lgreco_hook)
        flat(gradients(rank, 0)).backward()
    return [*told, str(raised.value)]


def test_what_cannot_work_with_a_sharded_module_is_refused_by_name() -> None:
    for told in on_ranks(2, _routes):
        for text, words in zip(told, ["route is 'scatter_reduce', and", "route is 'all_gather', and", "route is 'sharded', expected"]):
            assert text.startswith(words)
        assert "call lgreco.torch.register(model)" in told[3]


def _registers_alone(rank: int) -> str:
    dist.barrier()  # Without this, rank 1 may end before rank 0 is connected.
    if rank == 1:
        return ""
    with pytest.raises(LgrecoError) as raised:
        LGreCoState(None, Linear())
    return str(raised.value)


def test_a_rank_that_registers_alone_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import ranks

    monkeypatch.setattr(ranks, "TIMEOUT", timedelta(seconds=3))
    told, _ = on_ranks(2, _registers_alone)
    assert told.startswith("rank 0 has waited for the other 1 ranks of its process group, and not all have made a state")
