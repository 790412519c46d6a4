"""Tests further features of trainers: mixed types, saved states, several models, other collectives, compiled models,
and bad input."""

import copy
import io
import json
import logging
import pathlib
import re
import time
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from conftest import FULL
from linear import Linear, gradients
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

import lgreco
from lgreco import LgrecoError
from lgreco.torch import LGreCoState, OuterStep, empty_state_dict, exchange, lgreco_hook, register
from lgreco.torch.layers import Layer
from lgreco.torch.planning import default_lead

TOPK: dict[str, Any] = {"method": "topk", "default": 0.1, "start_iter": 2, "period": 4, "window": 1}


def make(dtype: torch.dtype = torch.float32, group: dist.ProcessGroup | None = None, **options: Any) -> tuple[DDP, LGreCoState]:
    ddp = DDP(Linear(dtype), bucket_cap_mb=0.005, process_group=group)
    state = LGreCoState(group, ddp, **{**TOPK, **options})
    ddp.register_comm_hook(state, lgreco_hook)
    return ddp, state


def train(ddp: DDP, rank: int, steps: range) -> torch.Tensor:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    for at in steps:
        optimizer.zero_grad()
        ddp({name: value.to(next(ddp.parameters()).dtype) for name, value in gradients(rank, at).items()}).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten().float() for p in ddp.parameters()])


def _types(rank: int, dtype: torch.dtype, options: dict[str, Any]) -> tuple[torch.Tensor, dict[str, str]]:
    ddp, state = make(dtype, **options)
    return train(ddp, rank, range(8)), state.settings


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [
    {}, {"method": "qsgd", "default": 4}, {"residual_dtype": torch.int8}, {"policy": "paper", "method": "qsgd", "default": 4},
])  # fmt: skip
def test_narrow_gradients(dtype: torch.dtype, options: dict[str, Any]) -> None:
    options = {"default": 0.1, **options}
    (first, settings), (second, _) = on_ranks(2, _types, dtype, options)
    assert torch.equal(first, second) and first.any()
    assert any(setting != "dense" for setting in settings.values())


def _resumed(rank: int, stop: int) -> tuple[torch.Tensor, dict[str, Any]]:
    ddp, state = make(method="powersgd", default=2)
    train(ddp, rank, range(stop))
    if stop < 12:
        file = io.BytesIO()
        torch.save({"model": ddp.module.state_dict(), "lgreco": state.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        ddp, state = make(method="powersgd", default=2)
        ddp.module.load_state_dict(saved["model"])
        state.load_state_dict(saved["lgreco"])
        train(ddp, rank, range(stop, 12))
    return train(ddp, rank, range(0)), state._part()


@pytest.mark.parametrize("stop", [1, 5, 9])
def test_resuming_continues_bit_for_bit(stop: int) -> None:
    expected, found = on_ranks(2, _resumed, 12), on_ranks(2, _resumed, stop)
    for (parameters, state), (resumed, resumed_state) in zip(expected, found):
        assert torch.equal(parameters, resumed)
        assert state["layers"].keys() == resumed_state["layers"].keys() == {"first", "bias", "second", "third"}
        assert all(torch.equal(part, resumed_state["layers"][name]) for name, part in state["layers"].items())


def _checkpointed(rank: int, folder: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ddp, state = make(method="powersgd", default=2)
    train(ddp, rank, range(6))
    parameters = copy.deepcopy(ddp.module.state_dict())
    checkpoint.save({"lgreco": state}, checkpoint_id=folder)
    expected = train(ddp, rank, range(6, 10))
    checkpoint.load({"lgreco": state}, checkpoint_id=folder)  # the state's tensors already have the saved sizes
    ddp.module.load_state_dict(parameters)
    again = train(ddp, rank, range(6, 10))
    ddp, state = make(method="powersgd", default=2)
    ddp.module.load_state_dict(parameters)
    reader, own = checkpoint.FileSystemReader(folder), f"rank{rank}"
    found = {"lgreco": {own: empty_state_dict(reader.read_metadata(), "lgreco", own)}}
    checkpoint.load(found, storage_reader=reader)
    state.load_state_dict(found["lgreco"])
    with pytest.raises(LgrecoError, match="the checkpoint has no lgreco.rank7"):
        empty_state_dict(reader.read_metadata(), "lgreco", "rank7")
    return expected, again, train(ddp, rank, range(6, 10))


def test_distributed_checkpoints(tmp_path: pathlib.Path) -> None:
    for expected, again, found in on_ranks(2, _checkpointed, str(tmp_path)):
        assert torch.equal(expected, again) and torch.equal(expected, found)


def _saved(rank: int) -> dict[str, Any]:
    ddp, state = make()
    train(ddp, rank, range(6))
    return state.state_dict(window=False)


def _with_fewer(rank: int, saved: list[dict[str, Any]]) -> torch.Tensor:
    _, state = make()
    merged = {key: part for one in saved for key, part in one.items()}
    with pytest.raises(LgrecoError, match=r"parts of ranks \[0, 1, 2.*residuals="):
        state.load_state_dict(merged)
    with pytest.raises(LgrecoError, match="pass each part alone"):
        state.load_state_dict(saved[rank], [merged])
    state.load_state_dict(merged, [saved[rank], saved[-1]] if rank == 0 else [saved[rank]])
    return _mean_of(state)


def _mean_of(state: LGreCoState) -> torch.Tensor:
    residual = state.residual("second")
    dist.all_reduce(residual)
    return residual / dist.get_world_size()


def _mean_residual(rank: int) -> torch.Tensor:
    ddp, state = make()
    train(ddp, rank, range(6))
    return _mean_of(state)


@pytest.mark.parametrize("world", [3, 4])
def test_one_worker_fewer_takes_the_residuals_over(world: int) -> None:
    saved, expected = on_ranks(world, _saved), on_ranks(world, _mean_residual)[0]
    assert expected.any()
    for found in on_ranks(world - 1, _with_fewer, saved):
        torch.testing.assert_close(found, expected)


def _two_models(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    (one, _), (other, _) = make(group=groups[0]), make(group=groups[1], method="powersgd", default=2)
    for at in range(8):
        # Both models are in one backward pass, with the user's own collective in between.
        loss = one(gradients(rank, at)) + other(gradients(rank, at))
        loss.register_hook(lambda gradient: dist.all_reduce(torch.ones(3)) and None)
        loss.backward()
    alone, _ = make()
    for at in range(8):
        alone(gradients(rank, at)).backward()
    return tuple(torch.cat([p.grad.flatten() for p in ddp.parameters()]) for ddp in (one, other, alone))  # type: ignore


def test_two_models_in_one_backward_pass() -> None:
    (one, other, alone), (one_there, other_there, _) = on_ranks(2, _two_models)
    assert torch.equal(one, one_there) and torch.equal(other, other_there)
    assert torch.equal(one, alone)


def _with_collectives(rank: int, between: bool) -> tuple[torch.Tensor, list[str]]:
    """Trains with the user's own collective on DDP's group, between two buckets."""
    ddp, state = make(method="powersgd", default=2)
    events: list[str] = []
    exchange = state.exchange

    def noting(bucket: dist.GradBucket) -> Any:
        events.append("bucket")
        return exchange(bucket)

    def sum_up(gradient: torch.Tensor) -> None:
        events.append("own")
        total = gradient.sum()
        dist.all_reduce(total)

    state.exchange = noting  # type: ignore[method-assign]
    if between:
        ddp.module.second.register_hook(sum_up)
    parameters = train(ddp, rank, range(8))
    return parameters, events[-5:]


def test_others_collectives_between_two_buckets() -> None:
    expected, found = on_ranks(2, _with_collectives, False), on_ranks(2, _with_collectives, True)
    for (alone, _), (parameters, events) in zip(expected, found):
        assert torch.equal(parameters, alone)
        assert events.count("bucket") >= 2 and "bucket,own,bucket" in ",".join(events), events


def _many_buckets(rank: int, steps: int) -> torch.Tensor:
    ddp, state = make(method="powersgd", default=1, policy="uniform", min_elements=1)
    with pytest.raises(LgrecoError, match="no step has ended"):
        state.metrics_line()
    buckets: set[int] = set()
    exchange = state.exchange

    def noting(bucket: dist.GradBucket) -> Any:
        buckets.add(bucket.index())
        return exchange(bucket)

    state.exchange = noting  # type: ignore[method-assign]
    parameters = train(ddp, rank, range(steps))
    report = state.last_report
    assert report is not None and report.step == steps - 1 and len(buckets) >= 3
    told = eval(repr(report), {"Report": dict})
    assert told == {name: getattr(report, name) for name in dir(report) if not name.startswith("_")}
    line = json.loads(state.metrics_line())
    assert (line["step"], line["bytes_out"]) == (steps - 1, report.bytes_out)
    assert [layer["name"] for layer in line["layers"]] == list(state.metrics())
    return parameters


def test_powersgd_with_several_buckets_goes_on() -> None:
    """PyTorch's own powerSGD_hook aborts here: its callbacks start collectives in orders that differ between ranks."""
    first, second = on_ranks(2, _many_buckets, 1000 if FULL else 100)
    assert torch.equal(first, second)


def _told(rank: int) -> list[str]:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("lgreco").addHandler(Kept())
    logging.getLogger("lgreco").setLevel(logging.INFO)
    ddp, state = make(method="qsgd", default=4, policy="uniform", min_elements=64)
    lines.clear()
    train(ddp, rank, range(8))
    assert state.last_report is not None and f" gradients as {state.last_report.bytes_out} (" in state.report()
    return lines


def test_the_log_says_once_what_is_compressed_and_what_is_not() -> None:
    first, second = on_ranks(2, _told)
    assert len(first) == 1 and second == [], (first, second)
    assert " layers compressed (" in first[0] and " qsgd), " in first[0], first
    assert "; all-gather over 2 ranks; uncompressed: " in first[0] and " small (" in first[0], first


def _compiled(rank: int, compiles: bool) -> tuple[torch.Tensor, int]:
    dist._DEFAULT_FIRST_BUCKET_BYTES = 5000  # Dynamo refuses a first bucket that is larger than the others
    ddp, state = make(default=0.2)
    buckets = []
    exchange = state.exchange

    def noting(bucket: dist.GradBucket) -> Any:
        buckets.append(bucket.index())
        return exchange(bucket)

    state.exchange = noting  # type: ignore[method-assign]
    parameters = train(torch.compile(ddp, backend="eager") if compiles else ddp, rank, range(8))
    return parameters, max(buckets)


def test_compiled_models_with_several_buckets() -> None:
    for (expected, _), (found, last) in zip(on_ranks(2, _compiled, False), on_ranks(2, _compiled, True)):
        assert torch.equal(found, expected) and last >= 1


def _python_reducer(rank: int) -> str:
    torch._dynamo.config.optimize_ddp = "python_reducer"
    ddp, _ = make()
    compiled = torch.compile(ddp, backend="eager")
    with pytest.raises(TypeError) as raised, torch._dynamo.utils.maybe_enable_compiled_autograd(True, fullgraph=False):
        compiled(gradients(rank, 0)).backward()
    return str(raised.value)


@pytest.mark.slow
def test_compiling_in_a_way_that_has_no_buckets_is_told() -> None:
    for error in on_ranks(2, _python_reducer):
        assert "optimize_ddp='ddp_optimizer'" in error


def test_a_tensor_in_a_buckets_place_is_told() -> None:
    """Some compiled models give a hook a tensor instead of a bucket."""
    with pytest.raises(TypeError, match="given a Tensor instead of a GradBucket.*optimize_ddp='ddp_optimizer'"):
        lgreco_hook(None, torch.ones(4))  # type: ignore[arg-type]


def _given(rank: int) -> tuple[dict[str, str], list[str]]:
    settings = {"first": "topk 7", "second": "qsgd 3", "third": "powersgd 2"}
    ddp, state = make(method=None, default=None, settings=settings)
    train(ddp, rank, range(4))
    errors = []
    wrong: list[dict[str, Any]] = [
        {"settings": {"fourth": "dense"}}, {"settings": {"first": "topk 7 %"}}, {"method": "top-k"}, {"density": 0.1},
        {"default": "much"}, {"start_iter": 1}, {"residual_dtype": torch.float64}, {"policy": "best"},
    ]
    for options in wrong:
        with pytest.raises(LgrecoError) as raised:
            make(**options)
        errors.append(str(raised.value))
    return state.settings, errors


def _larger(rank: int) -> list[str]:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("lgreco").addHandler(Kept())
    make(method=None, default=None, settings={"first": "topk 7", "second": "powersgd 5000", "bias": "dense"})
    return lines


def test_settings_that_send_more_than_no_compression_are_logged_once() -> None:
    first, second = on_ranks(2, _larger)
    assert second == [] and len(first) == 1
    assert re.fullmatch(r"second: 'powersgd 5000' sends \d+ bytes, more than the \d+ of the layer uncompressed", first[0])


def _one_scaler(rank: int) -> list[str]:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("lgreco").addHandler(Kept())
    scalers = [torch.amp.GradScaler("cpu") for _ in range(2)]
    states = [make(grad_scaler=scaler) for scaler in (*scalers, scalers[0])]
    return lines if len(states) == 3 else []


def test_a_scaler_that_two_states_share_is_logged() -> None:
    ((line,),) = on_ranks(1, _one_scaler)
    assert line.startswith("another state has this GradScaler") and line.endswith("give each state a GradScaler of its own")


def test_settings_may_be_given_and_are_checked() -> None:
    (settings, errors), _ = on_ranks(2, _given)
    assert settings == {"first": "topk 7", "bias": "dense", "second": "qsgd 3", "third": "powersgd 2"}
    for name, error in zip(["fourth", "%", "method", "density", "default", "start_iter", "residual_dtype", "policy"], errors):
        assert name in error


def _planned(rank: int, options: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, float]]:
    plans: list[dict[str, Any]] = []

    def note(state: LGreCoState) -> None:
        assert state.plan is not None
        plans.append(state.plan)

    ddp, state = make(on_plan=note, min_elements=64, **options)
    train(ddp, rank, range(12))
    return plans, state.scalars()


def test_budgets_are_kept() -> None:
    sizes = {}
    for budget in ("size", "error", 40_000):
        (plans, scalars), (others, _) = on_ranks(2, _planned, {"budget": budget})
        assert plans == others and [plan["step"] for plan in plans] == [2, 6, 10] and all(plan["proven"] for plan in plans)
        sizes[budget] = [plan["size"] for plan in plans]
        assert scalars["lgreco/plan/size"] == sizes[budget][-1] and scalars["lgreco/ratio"] > 1
        assert {"lgreco/relative_error/second", "lgreco/residual_norm/second"} <= scalars.keys()
        for plan in plans:
            assert budget != "size" or 0.9 * plan["default_size"] < plan["size"] <= plan["default_size"]
            assert budget != 40_000 or 36_000 < plan["size"] <= 40_000
    assert max(sizes["error"]) < min(sizes["size"])


def test_compression_ramps_up() -> None:
    (plans, _), _ = on_ranks(2, _planned, {"ramp_up": (0.5, 8)})
    sizes = [plan["size"] for plan in plans]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 3 * sizes[-1]


def _policies(rank: int) -> tuple[list[str], list[dict[str, str]]]:
    """Returns the settings after the decisions at steps 2, 4, 6 and 8, for one layer under Accordion and three layers under
    LEGACY."""
    options: dict[str, Any] = {"method": "topk", "default": None, "min_elements": 64, "period": 2}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    ddp, state = make(policy="accordion", accordion=(0.2, 0.02), optimizer=optimizer, **options)
    accordion = []
    for at in range(9):
        optimizer.param_groups[0]["lr"] = 1.0 if at < 6 else 0.1
        train(ddp, rank, range(at, at + 1))
        accordion.append(state.settings["second"])
    ddp, state = make(policy="legacy", legacy=([2000, 2500], [[0.4, 0.2, 0.1], [0.04, 0.02, 0.01]], 8), **options)
    legacy = []
    for at in range(9):
        train(ddp, rank, range(at, at + 1))
        legacy.append(state.settings)
    for policy in ("accordion", "legacy"):
        with pytest.raises(LgrecoError, match=f"needs its levels as {policy}"):
            make(policy=policy)
    return accordion, legacy


def test_accordion_and_legacy() -> None:
    for accordion, legacy in on_ranks(2, _policies):
        assert accordion == ["dense"] * 2 + ["topk 512"] * 2 + ["topk 51"] * 2 + ["topk 512"] * 2 + ["topk 51"]
        sizes = [[settings[name] for name in ("first", "third", "second")] for settings in legacy]
        assert sizes == [["dense"] * 3] * 2 + [["topk 768", "topk 410", "topk 256"]] * 2 + [["topk 77", "topk 41", "topk 26"]] * 5


def _callback_fails(rank: int) -> tuple[list[int], torch.Tensor]:
    failed = []

    def on_plan(state: LGreCoState) -> None:
        if rank == 1:
            raise KeyError("of the user's own")

    ddp, _ = make(on_plan=on_plan)
    for at in range(8):
        try:
            train(ddp, rank, range(at, at + 1))
        except KeyError:
            failed.append(at)
    train(ddp, rank, range(8, 9))
    return failed, torch.cat([p.grad.flatten() for p in ddp.parameters()])


def test_a_callback_that_fails_does_so_out_of_backward() -> None:
    (none, first), (failed, second) = on_ranks(2, _callback_fails)
    assert none == [] and failed == [2, 6] and torch.equal(first, second)


def test_callbacks_and_optimizers_are_checked() -> None:
    for failed in on_ranks(2, _no_callback):
        assert "on_plan is 3, expected a function" in failed[0] and "optimizer is 3, expected a torch.optim.Optimizer" in failed[1]


def _no_callback(rank: int) -> list[str]:
    failed = []
    for options in ({"on_plan": 3}, {"optimizer": 3}):
        with pytest.raises(LgrecoError) as raised:
            make(**options)
        failed.append(str(raised.value))
    return failed


def _planned_aside(rank: int) -> tuple[list[int], torch.Tensor]:
    steps: list[int] = []
    ddp, state = make(on_plan=lambda state: steps.append(state.plan["step"]), start_iter=3, lead=2)
    until = time.monotonic() + 60
    for at in range(1000):
        parameters = train(ddp, rank, range(at, at + 1))
        # Ranks continue until every rank has seen two plans.
        enough = torch.tensor(float(len(steps) >= 2 or time.monotonic() > until))
        dist.all_reduce(enough, dist.ReduceOp.MIN)
        if enough:
            break
    return steps, parameters


def test_plans_are_made_while_training_goes_on() -> None:
    (steps, first), (other_steps, second) = on_ranks(2, _planned_aside)
    assert len(steps) >= 2 and steps == other_steps and torch.equal(first, second)
    assert steps[0] == 3, "the plan's own step waits for it"


def test_large_models_are_planned_on_a_thread() -> None:
    large, small = [[Layer("weight", (side, side), torch.float32)] for side in (2048, 2047)]
    assert default_lead(large, None, {}) == default_lead(large, None, {"policy": "paper"}) == 10 and default_lead(small, None, {}) == 0
    assert default_lead(large, None, {"start_iter": 3}) == 1 and default_lead(large, None, {"period": 12}) == 6
    assert default_lead(large, None, {"start_iter": numpy.int64(3)}) == 1, "whole numbers of any type count"  # type: ignore[typeddict-item]
    assert default_lead(large, None, {"policy": "uniform"}) == default_lead(large, None, {"settings": {"weight": "qsgd 4"}}) == 0


def _threads_of_plans(rank: int) -> dict[str, bool]:
    """For each kind of trainer, whether a thread makes a large model's plan before the plan is due."""
    sharded = torch.nn.Linear(2048, 2048)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (2,)))
    states = {
        "DDP": register(DDP(torch.nn.Linear(2048, 2048)))._planning,
        "FSDP2": register(sharded)._planning,
        "OuterStep": OuterStep(torch.nn.Linear(2048, 2048))._fragments[0]._planning,
    }
    return {kind: planning.leads for kind, planning in states.items()}


def test_every_trainer_plans_large_models_on_a_thread() -> None:
    for leads in on_ranks(2, _threads_of_plans):
        assert leads == {"DDP": True, "FSDP2": True, "OuterStep": True}


def _replanned(rank: int) -> tuple[list[int], list[int | None], str]:
    steps: list[int] = []
    ddp, state = make(on_plan=lambda state: steps.append(state.plan["step"]), start_iter=3, period=20, window=2)
    due = []
    for at in range(12):
        due += [state.replan()] if at in (0, 6) else []
        train(ddp, rank, range(at, at + 1))
    if rank == 1:
        state.replan()
    with pytest.raises(LgrecoError) as raised:
        train(ddp, rank, range(12, 13))
    _, fixed = make(method=None, default=None, settings={"second": "topk 9"})
    due.append(fixed.replan())
    return steps, due, str(raised.value)


def test_a_plan_may_be_asked_for() -> None:
    for steps, due, error in on_ranks(2, _replanned):
        assert steps == [3, 8] and due[:2] == [3, 8] and "rank 1 and rank 0" in error


def test_threads_are_had_after_a_fork() -> None:
    """Child processes can make plans, although they do not have the parent's planning threads."""
    assert lgreco.plan({"second": torch.randn(64, 40)}).proven
    (plans, _), _ = on_ranks(2, _planned, {})
    assert len(plans) == 3


def _drawn(rank: int, folder: str) -> None:
    ddp, state = make()
    train(ddp, rank, range(4))
    state.plot(f"{folder}/{rank}.svg")
    module = torch.nn.ParameterDict({"$x^{$": torch.nn.Parameter(torch.zeros(40, 48))})
    LGreCoState(None, module, min_elements=64).plot(f"{folder}/dollars{rank}.svg")


def test_states_as_pictures(tmp_path: pathlib.Path) -> None:
    on_ranks(2, _drawn, str(tmp_path))
    assert "relative error" in (tmp_path / "0.svg").read_text()
    assert "<!-- $x^{$ -->" in (tmp_path / "dollars0.svg").read_text()


def _order(rank: int) -> list[str]:
    """Returns the order in which a step of PowerSGD starts collectives and waits for them. Ranks have exchanged the step's
    buckets before."""
    ddp, _ = make(method="powersgd", default=1, policy="uniform", min_elements=1)
    train(ddp, rank, range(6))
    events: list[str] = []
    real = exchange.start

    class Noted:
        def __init__(self, work: Any) -> None:
            self.work = work

        def wait(self) -> None:
            events.append("wait")
            self.work.wait()

        def is_completed(self) -> bool:
            return bool(self.work.is_completed())

    def start(request: Any, group: Any) -> Noted:
        events.append("start")
        return Noted(real(request, group))

    exchange.start = start  # type: ignore[assignment]
    train(ddp, rank, range(6, 7))
    exchange.start = real
    return events


def test_first_collectives_go_on_while_the_backward_pass_does() -> None:
    for events in on_ranks(2, _order):
        buckets = events.index("wait")
        assert buckets >= 3 and events == ["start"] * buckets + ["wait", "start"] * buckets + ["wait"] * buckets
