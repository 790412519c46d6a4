"""Tests two nodes of two ranks. Gradients are summed inside nodes, and exchanged between nodes."""

import os
import pathlib
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients, mean
from ranks import TIMEOUT, on_ranks
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco._lgreco import Bucket
from lgreco.torch import ExchangeError, LGreCoState, lgreco_hook
from lgreco.torch import step as steps

WORLD, STEPS = 4, 10
TOPK: dict[str, Any] = {"method": "topk", "default": 0.1, "start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
SCHEMES: dict[str, dict[str, Any]] = {
    "topk": {},
    "eden": {"method": "eden", "default": 3},
    "powersgd": {"method": "powersgd", "default": 2, "route": "two_level"},
    "hybrid": {"method": "hybrid", "default": None},
    "plans aside": {"lead": 1},
    "seconds": {"objective": "seconds"},
}


def make(ranks_per_node: int | None = 2, ddp_options: dict[str, Any] | None = None, **options: Any) -> tuple[DDP, LGreCoState]:
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    if ranks_per_node is not None:
        os.environ["LOCAL_WORLD_SIZE"] = str(ranks_per_node)
    ddp = DDP(Linear(), bucket_cap_mb=0.005, **(ddp_options or {}))
    state = LGreCoState(None, ddp, **{**TOPK, **options})
    ddp.register_comm_hook(state, lgreco_hook)
    return ddp, state


def step(ddp: DDP, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    ddp.zero_grad()
    ddp(given).backward()
    return {name: p.grad.clone() for name, p in ddp.module.named_parameters() if p.grad is not None}


def shard(name: str, per_node: int, local: int) -> slice:
    """The elements of a local rank's shard. Shards consist of whole rows, and the shards of the first ranks may have one more
    row."""
    rows = SHAPES[name][0]
    start, end = (of * (rows // per_node) + min(of, rows % per_node) for of in (local, local + 1))
    each = torch.Size(SHAPES[name]).numel() // rows
    return slice(start * each, end * each)


def mean_residual(state: LGreCoState, name: str) -> torch.Tensor:
    """The mean residual over the nodes, or over the ranks if there are no nodes. All ranks return the same mean."""
    nodes, _, per_node, local = state._place()
    whole = torch.zeros(torch.Size(SHAPES[name]).numel())
    whole[shard(name, per_node, local)] = state.residual(name)
    dist.all_reduce(whole)
    return (whole / nodes).reshape(SHAPES[name])


def _run(rank: int, options: dict[str, Any], node_ranks: list[list[int]] | None) -> dict[str, Any]:
    if node_ranks is not None:
        groups = [dist.new_group(ranks) for ranks in node_ranks]
        options = {**options, "node_group": next(group for ranks, group in zip(node_ranks, groups) if rank in ranks)}
    ddp, state = make(2 if node_ranks is None else None, **options)
    sums = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    uncompressed = {}
    for at in range(STEPS):
        means = step(ddp, gradients(rank, at))
        uncompressed = means if at == 1 else uncompressed
        for name, value in means.items():
            sums[name] += value
    whole = {name: sums[name] + mean_residual(state, name) for name in SHAPES}
    return {"sums": sums, "uncompressed": uncompressed, "whole": whole, "settings": state.settings, "place": state._place()}


def _run_all(rank: int) -> list[dict[str, Any]]:
    return [_run(rank, options, None) for options in SCHEMES.values()]


def test_means_are_the_same_on_all_ranks_and_nothing_is_lost() -> None:
    for scheme, *found in zip(SCHEMES, *on_ranks(WORLD, _run_all), strict=True):
        assert [of["place"] for of in found] == [[2, 0, 2, 0], [2, 0, 2, 1], [2, 1, 2, 0], [2, 1, 2, 1]]
        for of in found:
            for name in SHAPES:
                assert torch.equal(of["sums"][name], found[0]["sums"][name]), f"{scheme}, {name}: ranks differ"
                assert torch.equal(of["uncompressed"][name], mean(WORLD, 1, name)), "sums of 1/64 are exact"
                if scheme not in ("eden", "hybrid"):  # EDEN is unbiased, and remembers nothing
                    expected = sum(mean(WORLD, at, name) for at in range(STEPS))
                    torch.testing.assert_close(of["whole"][name], expected, atol=1e-4, rtol=1e-4)
            assert scheme == "seconds" or any(setting != "dense" for setting in of["settings"].values()), scheme


def test_gradients_may_be_sent_as_bf16_inside_nodes() -> None:
    found = on_ranks(WORLD, _run, {"reduce_dtype": torch.bfloat16}, None)
    for of in found:
        for name in SHAPES:
            assert torch.equal(of["sums"][name], found[0]["sums"][name]), f"{name}: ranks differ"
            torch.testing.assert_close(of["uncompressed"][name], mean(WORLD, 1, name), atol=2**-7, rtol=2**-7)
            expected = sum(mean(WORLD, at, name) for at in range(STEPS))
            torch.testing.assert_close(of["whole"][name], expected, atol=0.1, rtol=0.01)


@pytest.mark.parametrize(
    "nodes, places",
    [
        ([[0, 2], [1, 3]], [[2, 0, 2, 0], [2, 1, 2, 0], [2, 0, 2, 1], [2, 1, 2, 1]]),
        # Ranks 3 and 2 are peers, although a process group sorts its ranks.
        ([[0, 3], [1, 2]], [[2, 0, 2, 0], [2, 1, 2, 0], [2, 0, 2, 1], [2, 1, 2, 1]]),
    ],
)
def test_nodes_may_be_any_groups(nodes: list[list[int]], places: list[list[int]]) -> None:
    found = on_ranks(WORLD, _run, {"route": "two_level"}, nodes)
    assert [of["place"] for of in found] == places
    for of in found:
        assert any(setting != "dense" for setting in of["settings"].values())
        for name in SHAPES:
            expected = sum(mean(WORLD, at, name) for at in range(STEPS))
            torch.testing.assert_close(of["whole"][name], expected, atol=1e-4, rtol=1e-4)
    for of in found:
        for name in SHAPES:
            assert torch.equal(of["sums"][name], found[0]["sums"][name]), f"{name}: ranks differ"


class _Parts(torch.nn.Module):
    """Some layers have fewer elements than a node has ranks."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {"scalar": (), "few": (1,), "none": (0,), "odd": (33, 40), "rows": (1, 2000)}.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, rank: int, at: int) -> torch.Tensor:
        return sum((p * self.gradient(p, rank, at)).sum() for p in self.parameters())  # type: ignore[return-value]

    @staticmethod
    def gradient(p: torch.Tensor, rank: int, at: int) -> torch.Tensor:
        return torch.full(p.shape, 1.0 + rank * at)


def _parts(rank: int, bucket_mb: float) -> list[torch.Tensor]:
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    ddp = DDP(_Parts(), bucket_cap_mb=bucket_mb)  # type: ignore[arg-type]
    state = LGreCoState(None, ddp, start_iter=2, settings={"odd": "qsgd 8", "rows": "qsgd 4"})
    ddp.register_comm_hook(state, lgreco_hook)
    found = []
    for at in range(6):
        ddp.zero_grad()
        ddp(rank, at).backward()
        found.append(torch.cat([p.grad.flatten() for p in ddp.parameters()]))  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("bucket_mb", [1e-6, 1.0], ids=["a bucket per layer", "one bucket"])
def test_shards_may_be_empty(bucket_mb: float) -> None:
    # With empty shards, ranks of a node perform different numbers of collectives between nodes.
    for found in on_ranks(WORLD, _parts, bucket_mb):
        for at, means in enumerate(found):
            torch.testing.assert_close(means, torch.full(means.shape, 1.0 + 1.5 * at))


def _spoilt(rank: int, failing: int) -> tuple[str, int | None, bool]:
    ddp, state = make()
    for at in range(4):
        step(ddp, gradients(rank, at))
    before = {name: state.residual(name) for name in SHAPES}
    given = gradients(rank, 4)
    if rank == failing:
        given["second"][3, 5] = torch.nan
    try:
        step(ddp, given)
        raise AssertionError("it should have raised")
    except LgrecoError as error:
        told = str(error)
        peer = error.peer
    kept = bool(torch.equal(state.residual("second"), before["second"]))
    for at in range(5, 8):
        step(ddp, gradients(rank, at))
    return told, peer, kept


@pytest.mark.parametrize("failing", [0, 3])
def test_a_gradient_that_is_not_finite_is_told_on_all_ranks(failing: int) -> None:
    for rank, (told, peer, kept) in enumerate(on_ranks(WORLD, _spoilt, failing)):
        assert kept
        if rank == failing:
            assert told.startswith("second: element ") and peer is None
        else:
            assert told.startswith(f"rank {failing} failed with error code 101") and peer == failing


class _Scaler:
    scale = 4.0

    def get_scale(self) -> float:
        return self.scale


def _scaled(rank: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], bool]:
    """A step overflows on rank 2, and an imitated GradScaler skips this step."""
    scaler = _Scaler()
    ddp, state = make(grad_scaler=scaler)
    sums = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    spoilt = False
    for at in range(STEPS):
        given = {name: gradient * scaler.scale for name, gradient in gradients(rank, at).items()}
        if at == 5 and rank == 2:
            given["first"][0, 0] = torch.inf
        means = step(ddp, given)
        if at == 5:
            spoilt = not all(value.isfinite().all() for value in means.values())
            scaler.scale = 2.0
            continue
        for name, value in means.items():
            sums[name] += value / scaler.scale
    state.follow_scale()
    return sums, {name: sums[name] + mean_residual(state, name) / scaler.scale for name in SHAPES}, spoilt


def test_steps_that_a_scaler_skips_are_taken_back() -> None:
    found = on_ranks(WORLD, _scaled)
    for sums, whole, spoilt in found:
        assert spoilt
        for name in SHAPES:
            assert torch.equal(sums[name], found[0][0][name])
            expected = sum(mean(WORLD, at, name) for at in range(STEPS) if at != 5)
            torch.testing.assert_close(whole[name], expected, atol=1e-4, rtol=1e-4)


def _unused(rank: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """In every other step, no rank uses one of the layers."""
    ddp, state = make(ddp_options={"find_unused_parameters": True})
    sums = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for at in range(STEPS):
        names = tuple(SHAPES) if at % 2 == 0 else ("first", "bias", "second")
        for name, value in step(ddp, gradients(rank, at, names)).items():
            sums[name] += value
    return sums, {name: sums[name] + mean_residual(state, name) for name in SHAPES}


def test_layers_that_no_rank_uses_lose_nothing() -> None:
    for _, whole in on_ranks(WORLD, _unused):
        for name in SHAPES:
            steps = range(0, STEPS, 2) if name == "third" else range(STEPS)
            expected = sum(gradients(rank, at, tuple(SHAPES) if at % 2 == 0 else ("first", "bias", "second"))[name] / WORLD for at in steps for rank in range(WORLD))
            torch.testing.assert_close(whole[name], expected, atol=1e-4, rtol=1e-4)


def _accumulated(rank: int) -> dict[str, torch.Tensor]:
    ddp, _ = make()
    for at in range(0, 4, 2):
        ddp.zero_grad()
        with ddp.no_sync():
            ddp(gradients(rank, at)).backward()
        ddp(gradients(rank, at + 1)).backward()
    return {name: p.grad for name, p in ddp.module.named_parameters() if p.grad is not None}


def test_gradients_are_accumulated() -> None:
    for found in on_ranks(WORLD, _accumulated):
        for name in SHAPES:
            torch.testing.assert_close(found[name], mean(WORLD, 2, name) + mean(WORLD, 3, name))


def _saved(rank: int, folder: str, per_node: int | None) -> dict[str, torch.Tensor]:
    ddp, state = make(per_node, policy="uniform", period=1000)
    for at in range(6):
        step(ddp, gradients(rank, at))
    state.save(folder)
    return {name: mean_residual(state, name) for name in SHAPES}


def _loaded(rank: int, folder: str, per_node: int | None) -> dict[str, torch.Tensor]:
    ddp, state = make(per_node, policy="uniform", period=1000)
    loaded = state.load(folder)
    assert (loaded.step, loaded.missing, loaded.misshaped) == (6, [], [])
    found = {name: mean_residual(state, name) for name in SHAPES}
    assert state.settings["second"].startswith("topk")
    for at in range(6, 9):
        step(ddp, gradients(rank, at))
    return found


@pytest.mark.parametrize("before, after", [((4, 2), (4, 2)), ((4, 2), (2, None)), ((4, 2), (4, None)), ((4, None), (4, 2))])
def test_states_continue_with_other_nodes(
    before: tuple[int, int | None], after: tuple[int, int | None], tmp_path: pathlib.Path
) -> None:
    saved = on_ranks(before[0], _saved, str(tmp_path), before[1])[0]
    assert saved["second"].any()
    for found in on_ranks(after[0], _loaded, str(tmp_path), after[1]):
        for name in SHAPES:
            torch.testing.assert_close(found[name], saved[name], atol=1e-5, rtol=1e-4)


def _refused(rank: int) -> list[str]:
    told = []
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    some = dist.new_group([0, 1, 2])
    pair = halves[rank // 2]
    flat, at_nodes = make(None)[1], make(2)[1]
    for attempt in (
        lambda: make(None, route="two_level"),
        lambda: make(3, route="two_level"),
        lambda: make(None, node_group=some if rank < 3 else pair),
        lambda: make(None, node_group=pair if rank != 3 else None),
        lambda: make(None, node_group=dist.group.WORLD),
        lambda: make(None, node_group="nodes"),
        lambda: make(2, route="two_level", policy="uncompressed", method=None, default=None, min_elements=None),
        lambda: make(2, route="two_level" if rank else "all_gather"),
        lambda: at_nodes.load_state_dict(flat.state_dict()),
        lambda: flat.load_state_dict(at_nodes.state_dict()),
        lambda: at_nodes.load_state_dict(at_nodes.state_dict(), [] if rank else [at_nodes.state_dict()]),
    ):
        try:
            attempt()
            told.append("nothing")
        except LgrecoError as error:
            told.append(str(error))
    return told


def test_what_cannot_be_is_refused() -> None:
    for told in on_ranks(WORLD, _refused):
        expected = [
            "LOCAL_WORLD_SIZE is not set among 4 ranks",
            "LOCAL_WORLD_SIZE is 3 among 4 ranks",
            "each of ranks [0, 1, 2, 3] must be in exactly one group",
            "node_group is left out on rank 3",
            "expected at least two nodes with at least two ranks",
            "node_group is 'nodes', expected a process group",
            "no effect beside policy='uncompressed'",
            "route is 'two_level' on rank 1, 'all_gather' on rank 0",
            "the state is that of a rank of a run without nodes",
            "on node",
            "nothing",
        ]
        for words, text in zip(expected, told, strict=True):
            assert words in text, text


def _named(rank: int) -> list[str]:
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    dist.new_group([0])  # ranks now differ in their number of groups
    own = groups[rank // 2]
    given: list[dict[str, Any]] = [
        {"node_group": own, "route": "all_gather"},
        {"node_group": own, "method": "powersgd", "default": 2},
        {"node_group": "node" if rank == 1 else own},
        {"method": "powersgd", "default": 2} if rank == 1 else {},
    ]
    errors = []
    for options in given:
        with pytest.raises(LgrecoError) as raised:
            make(2, **options)
        errors.append(str(raised.value))
    step(make(2)[0], gradients(rank, 0))
    return errors


def test_groups_that_have_no_effect_and_options_that_differ_are_named() -> None:
    for rank, (idle, summed, wrong, differ) in enumerate(on_ranks(WORLD, _named)):
        assert "node_group is given, which has no effect beside route='all_gather'" in idle, idle
        assert "node_group is given, which has no effect beside method='powersgd' without a route" in summed, summed
        assert "node_group is 'node', expected a process group" in wrong, wrong
        assert rank == 1 or "rank 1 failed" in wrong, wrong
        assert "on rank 1" in differ and ("method" in differ or "default" in differ), differ


class _Scarce:
    """A bucket that lacks memory for its last collective while ``is_scarce`` is set, in one step of rank 1."""

    is_scarce = False

    def __init__(self) -> None:
        self.of = Bucket()

    def __getattr__(self, name: str) -> Any:
        if name == "next" and self.is_scarce and self.of.is_paused:
            raise LgrecoError("no memory for 4096 words")
        return getattr(self.of, name)


class _Lending:
    """A controller that lends layers to a ``_Scarce``."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.of, name)
        return (lambda *arguments: call(*[getattr(a, "of", a) for a in arguments])) if name in ("open", "close") else call


def _without_memory(rank: int) -> tuple[list[str], bool]:
    """Rank 1 lacks memory for a last collective. Returns the errors, and whether residuals are as before the failed step."""
    ddp, state = make(undo=True)
    told, kept = [], True
    state._controller, steps.Bucket = _Lending(state._controller), _Scarce  # type: ignore[assignment, misc]
    for at in range(7):
        before = [state.residual(name) for name in SHAPES]
        _Scarce.is_scarce = rank == 1 and at == 5
        began = time.monotonic()
        try:
            step(ddp, gradients(rank, at))
        except ExchangeError as error:
            told.append(f"{at}: {error}")
            kept = all(torch.equal(state.residual(name), was) for name, was in zip(SHAPES, before)) and before[0].any()  # type: ignore[assignment]
            break
    # The failing rank stays alive until rank 0 has the error, so the error does not come from the end of rank 1.
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("told", "")
    if rank == 1:
        store.wait(["told"], TIMEOUT / 4)
    assert time.monotonic() - began < TIMEOUT.total_seconds() / 4
    return told, bool(kept)


def test_a_rank_without_memory_for_the_last_collective_leaves_and_no_rank_waits() -> None:
    found = on_ranks(WORLD, _without_memory)
    assert all(kept for _, kept in found)
    (mate,), (own,), *_ = (told for told, _ in found)
    assert own.startswith("5: rank 1, step 5: ") and "no memory for 4096 words" in own
    assert mate.startswith("5: rank 0, step 5: a collective has failed")
    assert all(told[0].startswith("6: ") for told, _ in found[2:])
