"""Outer steps over compressed pseudo-gradients."""

import copy
import io
import pathlib
import pickle
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from lgreco import LgrecoError
from lgreco.torch import ExchangeError, OuterStep, flight

TOPK: dict[str, Any] = {"method": "topk", "default": 0.1, "start_iter": 2, "period": 3}


def train(model: Linear, outer: OuterStep, rank: int, steps: range) -> list[bool]:
    """Inner SGD of rate 1/8 on gradients that do not depend on the model."""
    made = []
    for step in steps:
        with torch.no_grad():
            for name, gradient in gradients(rank, step).items():
                model.get_parameter(name).sub_(gradient, alpha=0.125)
        made.append(outer.step())
    return made


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _whole(rank: int, fragments: int, delay: int) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
    """Without momentum and decay: what the model has moved by, plus the mean residual."""
    model = Linear()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(float(rank))  # rank 0's is everybody's
    options: dict[str, Any] = {"every": 4, "fragments": fragments, "delay": delay, **TOPK}
    outer = OuterStep(model, learning_rate=1.0, momentum=0.0, feedback_decay=1.0, **options)
    assert torch.equal(flat(model), torch.zeros_like(flat(model)))
    made = train(model, outer, rank, range(40))
    outer.finish()
    assert any(setting != "dense" for setting in outer.settings.values())
    assert outer.compression_stats()[0] > 2
    residual = torch.cat([outer.residual(name) for name in SHAPES])
    assert residual.any()
    dist.all_reduce(residual)
    return flat(model), flat(model) - residual / 2, made


@pytest.mark.parametrize("fragments, delay", [(1, 0), (2, 0), (1, 3), (2, 1)])
def test_nothing_is_lost(fragments: int, delay: int) -> None:
    (first, whole, made), (second, _, _) = on_ranks(2, _whole, fragments, delay)
    expected = torch.cat([
        -0.125 * sum(gradients(rank, step)[name] for rank in range(2) for step in range(40)).flatten() / 2 for name in SHAPES
    ])
    apart = 4 // fragments
    assert made == [step + 1 > delay and (step + 1 - delay) % apart == 0 and step + 1 - delay >= apart for step in range(40)]
    if fragments == 1:
        assert torch.equal(first, second)
        torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)


def _mixed(rank: int) -> list[torch.Tensor]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4).bfloat16(), torch.nn.LayerNorm(4))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(8.0)
    outer = OuterStep(model, every=1, learning_rate=1.0, momentum=0.0, policy="uncompressed")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0 + 2.0 * rank)
    assert outer.step()
    return [p.detach() for p in model.parameters()]


def test_parameters_of_several_types_are_averaged_as_what_holds_all() -> None:
    for parameters in on_ranks(2, _mixed):
        assert [p.dtype for p in parameters] == 2 * [torch.bfloat16] + 2 * [torch.float32]
        assert all(torch.equal(p, torch.full_like(p, 10.0)) for p in parameters)


def _dense(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Against an outer optimizer of torch's."""
    model, plain = Linear(), Linear()
    outer = OuterStep(model, every=3, momentum=0.9, policy="uncompressed")
    sgd = torch.optim.SGD(plain.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    train(model, outer, rank, range(12))
    for round in range(4):
        for name, p in plain.named_parameters():
            moved = 0.125 * sum(gradients(rank, 3 * round + step)[name] for step in range(3))
            dist.all_reduce(moved)
            p.grad = moved / 2
        sgd.step()
    return flat(model), flat(plain)


def test_the_outer_step_is_sgd_with_nesterovs_momentum() -> None:
    for found, expected in on_ranks(2, _dense):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def _delayed(rank: int) -> None:
    """Between sending and averaging each process trains on, and keeps what it learns."""
    model = Linear()
    outer = OuterStep(model, every=3, delay=2, learning_rate=1.0, momentum=0.0, policy="uncompressed")
    start = torch.zeros_like(flat(model))
    own = torch.cat([torch.cat([gradients(rank, step)[name].flatten() for name in SHAPES])[None] for step in range(12)]) * -0.125
    for step in range(12):
        train(model, outer, rank, range(step, step + 1))
        sent = step - 1
        if sent % 3 != 0 or sent < 3:
            continue
        mean = own[sent - 3 : sent].sum(0)
        dist.all_reduce(mean)
        start += mean / 2
        torch.testing.assert_close(flat(model), start + own[sent : step + 1].sum(0), atol=1e-5, rtol=1e-5)


def test_means_that_come_late_find_what_has_been_learned_since() -> None:
    on_ranks(2, _delayed)


def _on_its_way(rank: int) -> torch.Tensor:
    model = Linear()
    outer = OuterStep(model, every=4, delay=3, **TOPK)
    train(model, outer, rank, range(9))
    with pytest.raises(LgrecoError, match="on its way"):
        outer.state_dict()
    outer.finish()
    outer.state_dict()
    return flat(model)


def test_states_are_saved_when_nothing_is_on_its_way() -> None:
    first, second = on_ranks(2, _on_its_way)
    assert first.any() and not torch.equal(first, second)  # each has learned something since


def _both_collectives(rank: int) -> None:
    """Biases are summed first, payloads gathered then: neither waits for the outer step."""
    model = Linear()
    outer = OuterStep(model, every=4, delay=3, min_elements=64, **TOPK)
    started, start = [], flight.start

    def counted(*arguments: Any) -> Any:
        started.append(arguments[0].kind)
        return start(*arguments)

    flight.start = counted
    train(model, outer, rank, range(11))
    started.clear()
    train(model, outer, rank, range(11, 12))
    (fragment,) = outer._fragments
    (sent,) = fragment._flights or []
    until = time.monotonic() + 60
    for step in (12, 13):
        while sent.is_flying() and not sent.is_done():
            assert time.monotonic() < until
        train(model, outer, rank, range(step, step + 1))
    assert fragment.has_sent and sent.is_last() and sent.is_done() and started == ["all_reduce", "all_gather"]
    flight.start = start
    assert train(model, outer, rank, range(14, 15)) == [True]


def test_all_collectives_are_on_their_way_meanwhile() -> None:
    on_ranks(2, _both_collectives)


def _cut_on_its_way(rank: int, has_come: bool) -> list[torch.Tensor]:
    """The network fails when a fragment is sent, and another is on its way or has come."""
    model = Linear()
    outer = OuterStep(model, every=4, fragments=2, delay=3, **TOPK)
    train(model, outer, rank, range(9))
    outer.finish()
    before = residuals(outer)
    train(model, outer, rank, range(9, 10))
    (sent,) = outer._fragments[1]._flights or []
    until = time.monotonic() + 60
    while has_come and not sent.is_last():
        assert time.monotonic() < until
        outer._fragments[1].go_on()
    while has_come and not sent.is_done():
        assert time.monotonic() < until
    train(model, outer, rank, range(10, 11))
    assert [fragment.has_sent for fragment in outer._fragments] == [False, True]
    start = flight.start

    def fails(*_: Any) -> Any:
        raise RuntimeError("Connection reset by peer")

    flight.start = fails
    with pytest.raises(ExchangeError, match="Connection reset"):
        train(model, outer, rank, range(11, 12))
    flight.start = start
    assert not any(fragment.has_sent for fragment in outer._fragments) and torch.equal(residuals(outer), before)
    outer.state_dict()
    train(model, outer, rank, range(12, 24))
    outer.finish()
    return [start for fragment in outer.state_dict()["fragments"] for start in fragment["starts"]]


@pytest.mark.parametrize("has_come", [False, True])
def test_without_a_network_nothing_is_on_its_way(has_come: bool) -> None:
    first, second = on_ranks(2, _cut_on_its_way, has_come)
    assert all(map(torch.equal, first, second)) and all(start.any() for start in first)


def _not_finite_in_one(rank: int) -> list[dict[str, int]]:
    """Of two fragments that have their turns in the same step."""
    model = Linear()
    outer = OuterStep(model, every=4, fragments=2, delay=2, **TOPK)
    if rank == 1:
        with torch.no_grad():
            model.first[0, 0] = torch.nan
    with pytest.raises(LgrecoError, match="first|rank 1"):
        train(model, outer, rank, range(6))
    assert [fragment.has_sent for fragment in outer._fragments] == [False, True]
    outer.finish()
    return [{name: layer["steps"] for name, layer in fragment.metrics().items()} for fragment in outer._fragments]


def test_an_error_of_one_fragment_costs_no_other_its_turn() -> None:
    for _, second in on_ranks(2, _not_finite_in_one):
        assert set(second.values()) == {2}


def _told_of_plans(rank: int) -> list[int]:
    """A state that is saved when a plan is told of has the outer step."""
    model, told = Linear(), []

    def on_plan(_: Any) -> None:
        assert torch.equal(flat(model), torch.cat([s.flatten() for s in outer.state_dict()["fragments"][0]["starts"]]))
        told.append(outer.steps)

    outer = OuterStep(model, every=2, on_plan=on_plan, **TOPK)
    train(model, outer, rank, range(12))
    return told


def test_plans_are_told_of_when_the_outer_step_is_made() -> None:
    for told in on_ranks(2, _told_of_plans):
        assert told and all(step % 2 == 0 for step in told)


def _resumed(rank: int, stop: int, delay: int, saves: bool) -> torch.Tensor:
    model = Linear()
    outer = OuterStep(model, every=4, fragments=2, delay=delay, **TOPK)
    train(model, outer, rank, range(stop))
    outer.finish()
    if not saves:
        train(model, outer, rank, range(stop, 40))
    else:
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "outer": outer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        model = Linear()
        outer = OuterStep(model, every=4, fragments=2, delay=delay, **TOPK)
        outer.load_state_dict(saved["outer"])
        model.load_state_dict(saved["model"])
        train(model, outer, rank, range(stop, 40))
    return flat(model)


@pytest.mark.parametrize("stop, delay", [(17, 0), (30, 0), (17, 3), (29, 1)])
def test_resuming_continues_bit_for_bit(stop: int, delay: int) -> None:
    for expected, found in zip(on_ranks(2, _resumed, stop, delay, False), on_ranks(2, _resumed, stop, delay, True)):
        assert torch.equal(found, expected)


def _decayed(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    model = Linear()
    outer = OuterStep(model, every=1, feedback_decay=0.5, learning_rate=1.0, momentum=0.0, settings={"second": "topk 9"}, start_iter=2)
    train(model, outer, rank, range(6))
    before = outer.residual("second")
    start = model.second.detach().clone()
    train(model, outer, rank, range(6, 7))
    sent = start - model.second.detach()
    dist.all_reduce(before)
    after = outer.residual("second")
    dist.all_reduce(after)
    mean = 0.125 * sum(gradients(rank, 6)["second"] for rank in range(2)) / 2
    return after / 2, 0.5 * (before / 2 + mean.flatten() - sent.flatten())


def test_feedback_decays() -> None:
    for found, expected in on_ranks(2, _decayed):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def _told(rank: int) -> tuple[dict[str, Any], dict[str, float], int]:
    model = Linear()
    outer = OuterStep(model, every=2, fragments=2, min_elements=64, **TOPK)
    train(model, outer, rank, range(12))
    return outer.metrics(), outer.scalars(), outer.compression_stats()[2]


def test_all_fragments_tell_their_numbers() -> None:
    for metrics, scalars, sent in on_ranks(2, _told):
        assert metrics.keys() == SHAPES.keys() and all(layer["steps"] == 6 for layer in metrics.values())
        assert sum(layer["bytes_out"] for layer in metrics.values()) == sent == scalars["lgreco/bytes"]
        assert {"lgreco/plan/size", "lgreco/residual_norm/first", "lgreco/residual_norm/third"} <= scalars.keys()


def residuals(outer: OuterStep) -> torch.Tensor:
    return torch.cat([outer.residual(name) for name in SHAPES])


def _not_finite(rank: int) -> tuple[str, torch.Tensor]:
    model = Linear()
    outer = OuterStep(model, every=2, **TOPK)
    train(model, outer, rank, range(4))
    before, good = residuals(outer), model.third[0, 0].item()
    assert before.any()
    if rank == 1:
        with torch.no_grad():
            model.third[0, 0] = float("nan")
    trained = train(model, outer, rank, range(4, 5)), flat(model)
    with pytest.raises(LgrecoError) as raised:
        outer.step()
    assert torch.equal(residuals(outer), before)
    torch.testing.assert_close(flat(model), trained[1], rtol=0, atol=0, equal_nan=True)
    if rank == 1:
        with torch.no_grad():
            model.third[0, 0] = good
    train(model, outer, rank, range(5, 7))
    return str(raised.value), flat(model)


def test_parameters_that_are_not_finite_are_an_error_on_all_and_change_nothing() -> None:
    (elsewhere, first), (here, second) = on_ranks(2, _not_finite)
    assert here.startswith("third: ") and "rank 1 failed" in elsewhere
    assert torch.equal(first, second)


def _cut(rank: int, after: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A network that fails for one outer step, which is taken again."""
    model = Linear()
    outer = OuterStep(model, every=2, **TOPK)
    train(model, outer, rank, range(after))
    before, start = residuals(outer), flight.start

    def fails(*_: Any) -> Any:
        raise RuntimeError("Connection reset by peer")

    flight.start = fails
    train(model, outer, rank, range(after, after + 1))
    trained = flat(model)
    with pytest.raises(ExchangeError, match="Connection reset"):
        outer.step()
    flight.start = start
    assert before.any() and torch.equal(residuals(outer), before) and torch.equal(flat(model), trained)
    outer.steps -= 1
    assert outer.step()
    return flat(model), residuals(outer)


def _whole_again(rank: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    model = Linear()
    outer = OuterStep(model, every=2, **TOPK)
    train(model, outer, rank, range(steps - 1))
    outer.step()
    return flat(model), residuals(outer)


def test_an_outer_step_whose_exchange_fails_is_taken_again_to_the_same_bits() -> None:
    for found, expected in zip(on_ranks(2, _cut, 6), on_ranks(2, _whole_again, 8)):
        assert all(torch.equal(*pair) for pair in zip(found, expected))


def _limited(rank: int, budget: int) -> list[int]:
    outer = OuterStep(model := Linear(), every=2, fragments=2, min_elements=64, **{**TOPK, "budget": budget})
    train(model, outer, rank, range(12))
    return [plan["size"] for plan in outer._plans()]


def test_budgets_in_bits_are_for_all_fragments() -> None:
    own = [torch.Size(SHAPES[name]).numel() for name in SHAPES]
    shares = [20_000 * sum(own[:3]) // sum(own), 20_000 * own[3] // sum(own)]
    for sizes in on_ranks(2, _limited, 20_000):
        assert all(0.9 * share < size <= share for size, share in zip(sizes, shares, strict=True)), sizes


class Flat(torch.nn.Module):
    """The same parameters as one column."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = torch.nn.Parameter(torch.zeros(sum(torch.Size(shape).numel() for shape in SHAPES.values()), 1))


def _joined(rank: int, forget: bool) -> None:
    """Layers that are joined, and a model that has them as one."""
    model, whole = Linear(), Flat()
    options: dict[str, Any] = {**TOPK, "every": 2, "widths": [1], "learning_rate": 1.0, "momentum": 0.0, "forget_moved": forget}
    outer, expected = OuterStep(model, joined=True, **options), OuterStep(whole, **options)
    for step in range(12):
        if step == 10:
            start = flat(model)
        train(model, outer, rank, range(step, step + 1))
        with torch.no_grad():
            moved = torch.cat([gradients(rank, step)[name].flatten() for name in SHAPES])
            whole.whole.sub_(moved[:, None], alpha=0.125)
        expected.step()
    assert outer.settings == {"joined.0": expected.settings["whole"]} and outer.settings["joined.0"].startswith("topk")
    assert torch.equal(flat(model), flat(whole))
    left = residuals(outer)
    assert torch.equal(left, expected.residual("whole"))
    moved = flat(model) != start
    assert left[~moved].any() and bool(left[moved].any()) != forget


@pytest.mark.parametrize("forget", [False, True])
def test_joined_layers_are_compressed_as_one(forget: bool) -> None:
    on_ranks(2, _joined, forget)


def _joined_fragments(rank: int) -> None:
    outer = OuterStep(model := Linear(), every=2, fragments=2, joined=True, settings={"joined.1": "topk 40"}, start_iter=2)
    train(model, outer, rank, range(12))
    assert outer.settings == {"joined.0": "dense", "joined.1": "topk 40"}
    assert not outer.residual("first").any() and outer.residual("third").count_nonzero() >= 2048 - 40
    again = OuterStep(Linear(), every=2, fragments=2, joined=True, settings={"joined.1": "topk 40"}, start_iter=2)
    again.load_state_dict(outer.state_dict())
    assert torch.equal(again.residual("third"), outer.residual("third"))
    with torch.no_grad():
        model.third[0, 1] = float("inf")
    with pytest.raises(LgrecoError, match="joined.1: "):
        train(model, outer, rank, range(12, 14))


def test_joined_layers_of_fragments() -> None:
    on_ranks(1, _joined_fragments)


def _saved(rank: int) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    model = Linear()
    outer = OuterStep(model, every=1, feedback_decay=1.0, **TOPK)
    train(model, outer, rank, range(4))
    return outer.state_dict(), residuals(outer), flat(model)


def _changed(rank: int, saved: list[dict[str, Any]], taken: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """With these ranks' residuals: the start, what is remembered, and parameters after a step."""
    model = Linear()
    outer = OuterStep(model, every=1, feedback_decay=1.0, **TOPK)
    outer.load_state_dict(saved[min(rank, len(saved) - 1)], [saved[at] for at in taken[rank]])
    start, remembered = flat(model), residuals(outer)
    train(model, outer, rank, range(4, 5))
    return start, remembered, flat(model)


def test_one_may_leave_and_another_join() -> None:
    saved = on_ranks(3, _saved)
    states, before, _ = zip(*saved)
    # Rank 2 leaves, and rank 0 takes over what it has remembered, or nobody does; or a fourth joins, who has nothing to.
    for taken, kept in (([[0, 2], [1]], 3), ([[0], [1]], 2), ([[0], [1], [2], []], 3)):
        found = on_ranks(len(taken), _changed, list(states), taken)
        starts, after, parameters = zip(*found)
        assert all(torch.equal(start, saved[0][2]) for start in starts), "where the next step starts"
        assert all(torch.equal(values, parameters[0]) for values in parameters)
        assert all(remembered.any() == bool(own) for remembered, own in zip(after, taken))
        torch.testing.assert_close(sum(after) / len(taken), sum(before[:kept]) / 3, rtol=1e-6, atol=1e-6)


def _refused(rank: int) -> None:
    model = Linear()
    outer = OuterStep(model, every=2, fragments=2, **TOPK)
    train(model, outer, rank, range(6))
    good = outer.state_dict()
    train(model, outer, rank, range(6, 8))
    before, parameters = outer.state_dict(), flat(model)
    first, second = good["fragments"]
    damaged = {**good, "fragments": [first, {**second, "layers": {name: part.flip(0) for name, part in second["layers"].items()}}]}
    other = {**good, "fragments": [first, {**second, "starts": [torch.zeros(1)]}]}
    fewer = {**good, "fragments": [first]}
    for state, taken, said in (
        (damaged, None, "magic"), (good, [damaged], "magic"), (other, [good], "other layers"), (good, [fewer], "1 fragments, expected 2"),
    ):
        with pytest.raises(ValueError, match=said):
            outer.load_state_dict(state, taken)
        assert str(outer.state_dict()) == str(before) and torch.equal(flat(model), parameters)


def test_states_that_do_not_fit_change_nothing() -> None:
    on_ranks(1, _refused)


def _options(rank: int) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"learning_rate": 0.0}, "learning_rate is 0.0"), ({"momentum": 1.0}, "momentum is 1.0"),
        ({"feedback_decay": 0.0}, "feedback_decay is 0.0"), ({"feedback_decay": float("nan")}, "feedback_decay is nan"),
        ({"every": 4, "fragments": 9}, "fragments is 9"), ({"every": 4, "delay": 4}, "delay is 4"), ({"settings": {"fourth": "dense"}}, "fourth"),
        ({"joined": True, "settings": {"first": "dense"}}, "'first', which is no fragment"), ({"grad_scaler": None}, "grad_scaler"),
    ]
    for options, said in wrong:
        with pytest.raises(ValueError, match=said):
            OuterStep(Linear(), **options)
        if rank == 0:
            options = {}
        with pytest.raises(ValueError, match=said):
            OuterStep(Linear(), **options)
    with pytest.raises(LgrecoError, match="fragments is 2 on rank 1, 1 on rank 0"):
        OuterStep(Linear(), fragments=1 + rank)


def test_options_are_checked() -> None:
    on_ranks(2, _options)


def _saved_when_planned(rank: int, folder: str) -> list[tuple[int, bool]]:
    """What is told of plans is the OuterStep, which saves what it loads."""
    model, told = Linear(), []

    def on_plan(planned: OuterStep) -> None:
        planned.save(f"{folder}/{planned.steps}")
        told.append((planned.steps, planned is outer))

    outer = OuterStep(model, every=2, fragments=2, on_plan=on_plan, **TOPK)
    train(model, outer, rank, range(8))
    dist.barrier()
    for steps, _ in told:
        other = OuterStep(Linear(), every=2, fragments=2, **TOPK)
        other.load(f"{folder}/{steps}")
        assert other.steps == steps
    return told


def test_on_plan_is_given_the_outer_step(tmp_path: pathlib.Path) -> None:
    for told in on_ranks(2, _saved_when_planned, str(tmp_path)):
        assert told and all(is_outer for _, is_outer in told)


UNCOMPRESSED: dict[str, Any] = {"policy": "uncompressed", "learning_rate": 1.0, "momentum": 0.0, "feedback_decay": 1.0}


def _given(rank: int, how: str) -> tuple[list[torch.Tensor], str]:
    """Weights that are changed after the OuterStep was made: where ranks are before and after the next outer steps."""
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


@pytest.mark.parametrize("how", ["differing", "one"])
def test_ranks_that_have_not_loaded_the_same_are_told(how: str) -> None:
    for _, told in on_ranks(2, _given, how):
        assert told.startswith("1: rank 1 and rank 0 have not loaded the same weights since the last outer step")


def _loaded_meanwhile(rank: int) -> list[str]:
    """Rank 1 alone loads weights while an outer step is on its way: what the next ones say."""
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
    """A copy of the model, and one that is pickled: loading into it is no business of the OuterStep's."""
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
    """Whether residuals are what they were after an outer step that all ranks refuse."""
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
    outer, told = OuterStep(model, every=2, **TOPK), []
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
    for told in on_ranks(2, _unfrozen, "replaced"):
        assert [text[:11] for text in told] == ["3: second: ", "5: second: "]
    elsewhere, here = on_ranks(2, _unfrozen, "one")
    assert here[0].startswith("3: third: ") and elsewhere[0].startswith("3: rank 1 cannot make the outer step")


def _sharded(rank: int, kind: str, rows: int) -> tuple[list[str], bool]:
    """A model that is sharded over pairs of ranks, and averaged over one of each pair: refusals, and whether its mean is right."""
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
        if outer.step():
            alike = alike and all(torch.allclose(part, mean / 2) for part, mean in zip(own(), expected))
    return told, alike


@pytest.mark.parametrize(("kind", "rows"), [("fsdp1", 8), ("fsdp1", 7), ("fsdp2", 8), ("fsdp2", 7), ("fsdp2", 1)])
def test_sharded_models_are_averaged_over_ranks_with_the_same_shards(kind: str, rows: int) -> None:
    for rank, (told, alike) in enumerate(on_ranks(4, _sharded, kind, rows)):
        shards = [0, 1] if rank < 2 else [2, 3]
        assert told[0].startswith(f"the model is sharded over ranks {shards}, and process_group, which averages it, has ranks [0, 1, 2, 3]: ")
        assert f"has ranks {shards}: " in told[1] and alike
