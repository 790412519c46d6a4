"""Tests outer steps over compressed pseudo-gradients."""

from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients
from ranks import on_ranks

from lgreco import LgrecoError
from lgreco.torch import OuterStep

TOPK: dict[str, Any] = {"method": "topk", "default": 0.1, "start_iter": 2, "period": 3}


def train(model: Linear, outer: OuterStep, rank: int, steps: range) -> list[bool]:
    """Takes inner steps of SGD with learning rate 1/8, on gradients that do not depend on the model."""
    made = []
    for step in steps:
        with torch.no_grad():
            for name, gradient in gradients(rank, step).items():
                model.get_parameter(name).sub_(gradient, alpha=0.125)
        made.append(outer.step())
    return made


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def residuals(outer: OuterStep) -> torch.Tensor:
    return torch.cat([outer.residual(name) for name in SHAPES])


def _whole(rank: int, fragments: int, delay: int) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
    """Trains without momentum and decay. Returns the model's total change plus the mean residual."""
    model = Linear()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(float(rank))  # all ranks get rank 0's values
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
    """Compares outer steps with an outer optimizer of torch."""
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
    """Between sending and averaging, each process continues to train, and keeps its own changes."""
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


def _limited(rank: int, budget: int) -> list[int]:
    numbers: dict[str, Any] = {"every": numpy.int64(2), "fragments": numpy.int64(2), "momentum": numpy.float32(0.5)}
    outer = OuterStep(model := Linear(), min_elements=64, **{**TOPK, **numbers, "budget": numpy.int64(budget)})
    train(model, outer, rank, range(12))
    return [plan["size"] for plan in outer._plans()]


def test_budgets_in_bits_are_for_all_fragments() -> None:
    own = [torch.Size(SHAPES[name]).numel() for name in SHAPES]
    shares = [20_000 * sum(own[:3]) // sum(own), 20_000 * own[3] // sum(own)]
    for sizes in on_ranks(2, _limited, 20_000):
        assert all(0.9 * share < size <= share for size, share in zip(sizes, shares, strict=True)), sizes


class Flat(torch.nn.Module):
    """A model with the same parameters, but stored as a single column."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = torch.nn.Parameter(torch.zeros(sum(torch.Size(shape).numel() for shape in SHAPES.values()), 1))


def _joined(rank: int, forget: bool) -> None:
    """Compares joined layers with a model whose parameters are a single layer."""
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
