"""Tests outer steps whose collectives are under way or fail, and parameters that are not finite."""

import contextlib
import time
from typing import Any

import pytest
import torch
from linear import Linear, gradients
from ranks import TIMEOUT, on_ranks
from test_outer import TOPK, flat, residuals, train

from lgreco import LgrecoError
from lgreco.torch import ExchangeError, OuterStep, exchange


def _both_collectives(rank: int) -> None:
    """An exchange first sums biases and then gathers payloads. Both collectives are done before the outer step is due."""
    model = Linear()
    outer = OuterStep(model, every=4, delay=3, min_elements=64, **TOPK)
    started, start = [], exchange.start

    def counted(*arguments: Any) -> Any:
        started.append(arguments[0].kind)
        return start(*arguments)

    exchange.start = counted
    train(model, outer, rank, range(11))
    started.clear()
    train(model, outer, rank, range(11, 12))
    (fragment,) = outer._fragments
    (sent,) = fragment._under_way()
    until = time.monotonic() + 60
    for step in (12, 13):
        while sent.is_flying() and not sent.is_done():
            assert time.monotonic() < until
        train(model, outer, rank, range(step, step + 1))
    assert fragment.has_sent and sent.is_last() and sent.is_done() and started == ["all_reduce", "all_gather"]
    exchange.start = start
    assert train(model, outer, rank, range(14, 15)) == [True]


def test_all_collectives_are_on_their_way_meanwhile() -> None:
    on_ranks(2, _both_collectives)


def _cut_on_its_way(rank: int, has_come: bool) -> list[torch.Tensor]:
    """The network fails when one fragment is sent, while another fragment is under way or already received."""
    model = Linear()
    outer = OuterStep(model, every=4, fragments=2, delay=3, **TOPK)
    train(model, outer, rank, range(9))
    outer.finish()
    before = residuals(outer)
    train(model, outer, rank, range(9, 10))
    (sent,) = outer._fragments[1]._under_way()
    until = time.monotonic() + 60
    while has_come and not sent.is_last():
        assert time.monotonic() < until
        outer._fragments[1].go_on()
    while has_come and not sent.is_done():
        assert time.monotonic() < until
    train(model, outer, rank, range(10, 11))
    assert [fragment.has_sent for fragment in outer._fragments] == [False, True]
    start = exchange.start

    def fails(*_: Any) -> Any:
        raise RuntimeError("Connection reset by peer")

    exchange.start = fails
    with pytest.raises(ExchangeError, match="Connection reset"):
        train(model, outer, rank, range(11, 12))
    exchange.start = start
    assert not any(fragment.has_sent for fragment in outer._fragments) and torch.equal(residuals(outer), before)
    outer.state_dict()
    train(model, outer, rank, range(12, 24))
    outer.finish()
    return [start for fragment in outer._part()["fragments"] for start in fragment["starts"]]


@pytest.mark.parametrize("has_come", [False, True])
def test_without_a_network_nothing_is_on_its_way(has_come: bool) -> None:
    first, second = on_ranks(2, _cut_on_its_way, has_come)
    assert all(map(torch.equal, first, second)) and all(start.any() for start in first)


def _not_finite_in_one(rank: int) -> list[dict[str, int]]:
    """One of two fragments has a parameter that is not finite. Both fragments have their turns in the same step."""
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
    """The network fails in one outer step, which is repeated."""
    model = Linear()
    outer = OuterStep(model, every=2, **TOPK)
    train(model, outer, rank, range(after))
    before, start = residuals(outer), exchange.start

    def fails(*_: Any) -> Any:
        raise RuntimeError("Connection reset by peer")

    exchange.start = fails
    train(model, outer, rank, range(after, after + 1))
    trained = flat(model)
    with pytest.raises(ExchangeError, match="Connection reset"):
        outer.step()
    exchange.start = start
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


def _without_pseudo_gradients(rank: int, delay: int, lacks: str, options: dict[str, Any]) -> tuple[list[str], torch.Tensor]:
    """In the second outer step, rank 1 cannot compute its pseudo-gradients. The third one works."""
    model = Linear()
    model.large = torch.nn.Parameter(torch.zeros(256, 256))
    outer = OuterStep(model, every=2, delay=delay, **options)
    told, whole = [], model.second.data

    def no_memory(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room")

    for step in range(7):
        with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
            if rank == 1 and step == 3 and lacks == "memory":
                patch.setattr(torch, "empty", no_memory)
            model.second.data = torch.zeros(3) if rank == 1 and step == 3 and lacks == "shape" else whole
            began = time.monotonic()
            try:
                outer.step()
            except LgrecoError as error:
                told.append(f"{step}: {error}")
            assert time.monotonic() - began < TIMEOUT.total_seconds() / 4
    outer.finish()
    return told, flat(model)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("lacks", ["memory", "shape"])
@pytest.mark.parametrize("options", [TOPK, {"policy": "uncompressed"}], ids=["topk", "uncompressed"])
def test_a_rank_without_pseudo_gradients_is_an_error_on_all(delay: int, lacks: str, options: dict[str, Any]) -> None:
    (others, weights), (own, same) = on_ranks(2, _without_pseudo_gradients, delay, lacks, options)
    assert torch.equal(weights, same)
    assert others == [f"{3 + delay}: rank 1 cannot make the outer step: its own error says why"]
    named = "no pseudo-gradients: MemoryError: no room" if lacks == "memory" else "second: the parameter has shape [3], and had "
    assert len(own) == 1 and own[0].startswith(f"{3 + delay}: ") and named in own[0]


def _made_in_part(rank: int, delay: int, fragments: int, fault: str) -> tuple[list[str], torch.Tensor]:
    """Rank 1 fails in the update of the second outer step, after the exchange. Returns the errors by step, and the weights after
    ``restart``."""
    model = Linear()
    outer = OuterStep(model, every=4, delay=delay, fragments=fragments, **TOPK)
    told, update, whole = [], torch.Tensor.copy_, model.third.data

    def fails(to: torch.Tensor, *values: Any) -> torch.Tensor:
        if to.data_ptr() == model.third.data_ptr():
            raise RuntimeError("the tensor cannot be written")
        return update(to, *values)

    for step in range(20):
        made = 7 + delay + (0 if fragments == 1 else 2)  # ``third`` is in the last fragment
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1 and step == made and fault == "copy":
                patch.setattr(torch.Tensor, "copy_", fails)
            began = time.monotonic()
            try:
                with torch.no_grad():
                    for name, gradient in gradients(rank, step).items():
                        if name != "third":
                            model.get_parameter(name).sub_(gradient, alpha=0.125)
                    if rank == 1 and step == made and fault == "shape":
                        model.third.data = torch.zeros(3)
                outer.step()
            except LgrecoError as error:
                told.append(f"{step}: {error}")
            model.third.data = whole
            assert time.monotonic() - began < TIMEOUT.total_seconds() / 4
    with contextlib.suppress(LgrecoError):
        outer.finish()
    with pytest.raises(LgrecoError, match="only in part") if rank == 1 else contextlib.nullcontext():
        outer.state_dict()
    outer.restart()
    train(model, outer, rank, range(20, 32))
    outer.finish()
    return told, torch.cat([start.flatten() for part in outer._part()["fragments"] for start in part["starts"]])


@pytest.mark.parametrize("delay, fragments, fault", [(0, 1, "copy"), (1, 1, "copy"), (1, 1, "shape"), (2, 2, "copy")])
def test_an_update_that_fails_on_one_rank_is_an_error_on_all_in_the_next_outer_step(delay: int, fragments: int, fault: str) -> None:
    (others, weights), (own, same) = on_ranks(2, _made_in_part, delay, fragments, fault)
    made = 7 + delay + (0 if fragments == 1 else 2)
    words = "third: rank 1 has made the outer step only in part: "
    words += "RuntimeError: the tensor cannot be written" if fault == "copy" else "the parameter has shape [3]"
    assert own[0].startswith(f"{made}: {words}")
    assert [text.split(":")[0] for text in own] == [str(step) for step in range(made, 20, 4)]
    assert [text.split(":")[0] for text in others] == [str(step) for step in range(made + 4, 20, 4)]
    assert all("rank 1 cannot make the outer step: it has made its last outer step only in part" in text for text in others)
    assert all("restart() on all" in text for text in own + others)
    assert torch.equal(weights, same) and weights.any()
