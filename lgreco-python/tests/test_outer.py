"""Outer steps over compressed pseudo-gradients."""

import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients
from ranks import on_ranks

from lgreco import LgrecoError
from lgreco.torch import OuterStep

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


def _whole(rank: int, fragments: int) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
    """Without momentum and decay: what the model has moved by, plus the mean residual."""
    model = Linear()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(float(rank))  # rank 0's is everybody's
    outer = OuterStep(model, every=4, learning_rate=1.0, momentum=0.0, feedback_decay=1.0, fragments=fragments, **TOPK)
    assert torch.equal(flat(model), torch.zeros_like(flat(model)))
    made = train(model, outer, rank, range(40))
    assert any(setting != "dense" for setting in outer.settings.values())
    assert outer.compression_stats()[0] > 2
    residual = torch.cat([outer.residual(name) for name in SHAPES])
    assert residual.any()
    dist.all_reduce(residual)
    return flat(model), flat(model) - residual / 2, made


@pytest.mark.parametrize("fragments", [1, 2])
def test_nothing_is_lost(fragments: int) -> None:
    (first, whole, made), (second, _, _) = on_ranks(2, _whole, fragments)
    expected = torch.cat([
        -0.125 * sum(gradients(rank, step)[name] for rank in range(2) for step in range(40)).flatten() / 2 for name in SHAPES
    ])
    assert made == [(step + 1) % (4 // fragments) == 0 for step in range(40)]
    if fragments == 1:
        assert torch.equal(first, second)
        torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)


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


def _resumed(rank: int, stop: int) -> torch.Tensor:
    model = Linear()
    outer = OuterStep(model, every=4, fragments=2, **TOPK)
    train(model, outer, rank, range(stop))
    if stop < 40:
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "outer": outer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        model = Linear()
        outer = OuterStep(model, every=4, fragments=2, **TOPK)
        outer.load_state_dict(saved["outer"])
        model.load_state_dict(saved["model"])
        train(model, outer, rank, range(stop, 40))
    return flat(model)


@pytest.mark.parametrize("stop", [17, 30])
def test_resuming_continues_bit_for_bit(stop: int) -> None:
    for expected, found in zip(on_ranks(2, _resumed, 40), on_ranks(2, _resumed, stop)):
        assert torch.equal(found, expected)


def _decayed(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    model = Linear()
    outer = OuterStep(model, every=1, feedback_decay=0.5, learning_rate=1.0, momentum=0.0, settings={"second": "topk 9"}, start_iter=2)
    train(model, outer, rank, range(6))
    before = outer.residual("second").clone()
    start = model.second.detach().clone()
    train(model, outer, rank, range(6, 7))
    sent = start - model.second.detach()
    dist.all_reduce(before)
    after = outer.residual("second")
    dist.all_reduce(after)
    mean = 0.125 * sum(gradients(rank, 6)["second"] for rank in range(2)) / 2
    return after / 2 + sent.flatten(), 0.5 * before / 2 + mean.flatten()


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


def _not_finite(rank: int) -> tuple[str, torch.Tensor]:
    model = Linear()
    outer = OuterStep(model, every=2, **TOPK)
    train(model, outer, rank, range(4))
    if rank == 1:
        with torch.no_grad():
            model.third[0, 0] = float("nan")
    with pytest.raises(LgrecoError) as raised:
        train(model, outer, rank, range(4, 6))
    return str(raised.value), outer.residual("first")


def test_parameters_that_are_not_finite_are_an_error_on_all() -> None:
    (elsewhere, _), (here, _) = on_ranks(2, _not_finite)
    assert here.startswith("third: ") and "rank 1 failed" in elsewhere


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="fragments is 9"):
        OuterStep(Linear(), every=4, fragments=9)
    with pytest.raises(LgrecoError, match="fourth"):
        OuterStep(Linear(), settings={"fourth": "dense"})
    with pytest.raises(ValueError, match="grad_scaler"):
        OuterStep(Linear(), grad_scaler=None)
