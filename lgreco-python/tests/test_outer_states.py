"""Tests saved states of outer steps, also when workers leave or join."""

import copy
import gc
import io
import pathlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import Linear
from ranks import on_ranks
from test_outer import TOPK, flat, residuals, train

from lgreco import LgrecoError
from lgreco.torch import OuterStep


def _on_its_way(rank: int) -> torch.Tensor:
    model = Linear()
    outer = OuterStep(model, every=4, delay=3, **TOPK)
    train(model, outer, rank, range(9))
    with pytest.raises(LgrecoError, match="under way"):
        outer.state_dict()
    outer.finish()
    outer.state_dict()
    return flat(model)


def test_states_are_saved_when_nothing_is_on_its_way() -> None:
    first, second = on_ranks(2, _on_its_way)
    assert first.any() and not torch.equal(first, second)  # each has learned something since


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


def _out_of_order(rank: int) -> tuple[str, str]:
    """Makes two mistakes: loads the model too early, and loads another rank's state. Returns the errors."""
    model = Linear()
    outer = OuterStep(model, every=4, fragments=2, **TOPK)
    train(model, outer, rank, range(17))
    saved, own, told = outer.state_dict(), model.state_dict(), []
    states: list[Any] = [None, None]
    dist.all_gather_object(states, saved)
    model = Linear()
    model.load_state_dict(own)
    outer = OuterStep(model, every=4, fragments=2, **TOPK)
    before, parameters = str(outer.state_dict()), flat(model)
    for state in (saved, states[0]):
        try:
            outer.load_state_dict(state)
            told.append("")
        except LgrecoError as error:
            assert str(outer.state_dict()) == before and torch.equal(flat(model), parameters)
            told.append(str(error))
    model.load_state_dict(own)
    outer.load_state_dict(saved)
    return told[0], told[1]


def test_states_are_loaded_in_order_and_each_ranks_own() -> None:
    first, (early, others) = on_ranks(2, _out_of_order)
    assert first == ("", "") and early.startswith("the model was loaded before the OuterStep was made, which has replaced")
    assert others.startswith("this is rank 1, and the state is that of rank 0")


def _saved(rank: int) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    model = Linear()
    outer = OuterStep(model, every=1, feedback_decay=1.0, **TOPK)
    train(model, outer, rank, range(4))
    return outer.state_dict(), residuals(outer), flat(model)


def _changed(rank: int, saved: list[dict[str, Any]], taken: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loads a saved state with the residuals of the ranks in ``taken``. Returns the parameters before a step, the residuals, and
    the parameters after the step."""
    model = Linear()
    outer = OuterStep(model, every=1, feedback_decay=1.0, **TOPK)
    outer.load_state_dict(saved[min(rank, len(saved) - 1)], [saved[at] for at in taken[rank]])
    start, remembered = flat(model), residuals(outer)
    train(model, outer, rank, range(4, 5))
    return start, remembered, flat(model)


def test_one_may_leave_and_another_join() -> None:
    saved = on_ranks(3, _saved)
    states, before, _ = zip(*saved)
    # Three cases: rank 2 leaves and rank 0 takes over its residuals, rank 2 leaves and its residuals are lost, or a fourth rank
    # joins without residuals.
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
    good = outer._part()
    train(model, outer, rank, range(6, 8))
    before, parameters = outer.state_dict(), flat(model)
    first, second = good["fragments"]
    damaged = {**good, "fragments": [first, {**second, "layers": {name: part.flip(0) for name, part in second["layers"].items()}}]}
    other = {**good, "fragments": [first, {**second, "starts": [torch.zeros(1)]}]}
    fewer = {**good, "fragments": [first]}
    bare = {**good, "fragments": [first, {name: part for name, part in second.items() if name != "starts"}]}
    worn = {**good, "fragments": [first, {name: part for name, part in second.items() if name != "layers"}]}
    for state, taken, said in (
        (bare, None, "no 'starts'"), (worn, None, "'layers'"), ({**good, "fragments": [first, None]}, [good], "no 'starts'"),
        (damaged, None, "magic"), (good, [damaged], "magic"), (other, [good], "other layers"), (good, [fewer], "1 fragments, expected 2"),
    ):
        with pytest.raises(ValueError, match=said):
            outer.load_state_dict(state, taken)
        assert str(outer.state_dict()) == str(before) and torch.equal(flat(model), parameters)


def test_states_that_do_not_fit_change_nothing() -> None:
    on_ranks(1, _refused)


def _differing(rank: int, how: str) -> tuple[list[str], torch.Tensor]:
    """Rank 1 loads a state that differs from rank 0's, and the right state after four steps. Returns the errors by step, and the
    parameters after the last outer step."""
    model, told = Linear(), []
    fragments = 2 if how == "turn" else 1
    outer = OuterStep(model, every=4, fragments=fragments, **TOPK)
    train(model, outer, rank, range(12))
    good = copy.deepcopy(outer._part())
    train(model, outer, rank, range(12, 16))
    (*_, last) = good["fragments"]
    other = {**good, "steps": good["steps"] + 2 if how in ("steps", "turn") else good["steps"]}
    if how in ("starts", "velocities"):
        changed = [values.clone() for values in last[how]]
        changed[0].view(-1)[3] += 1.0
        other["fragments"] = [*good["fragments"][:-1], {**last, how: changed}]
    if how == "damaged":
        other["fragments"] = [{**last, "layers": {name: part.flip(0) for name, part in last["layers"].items()}}]
    if how in ("turn", "new"):
        outer = OuterStep(model, every=4, fragments=fragments, **TOPK)
    if rank == 0 or how != "alone":
        try:
            outer.load_state_dict(other if rank == 1 else good)
        except LgrecoError as error:
            assert how == "damaged" and rank == 1 and "magic" in str(error)
    steps = 1 if how == "turn" else 4
    for at in range(steps):
        try:
            train(model, outer, rank, range(20 + at, 21 + at))
        except LgrecoError as error:
            told.append(f"{at}: {error}")
    outer.load_state_dict(good)
    train(model, outer, rank, range(24, 28))
    return told, torch.cat([start.flatten() for part in outer._part()["fragments"] for start in part["starts"]])


@pytest.mark.parametrize("how, words", [
    ("starts", "3: rank 1 and rank 0 have loaded OuterStep states with different parameters after the last outer step"),
    ("velocities", "3: rank 1 and rank 0 have loaded OuterStep states with different velocities"),
    ("alone", "3: rank 0 has loaded an OuterStep state since the last outer step, and rank 1 has not"),
    ("damaged", "3: rank 0 has loaded an OuterStep state since the last outer step, and rank 1 has not"),
    ("turn", "0: rank 1 goes on after step 14, and rank 0 after step 12"),
    ("new", None),
])
def test_ranks_compare_the_states_that_they_load(how: str, words: str | None) -> None:
    """After different loads, all ranks raise the same error in the next outer step. After equal loads, all ranks continue with
    equal parameters."""
    (first, start), (second, other) = on_ranks(2, _differing, how)
    expected = [] if words is None else [f"{words}: load on all ranks what they saved after the same step"]
    assert first == second == expected
    assert start.any() and torch.equal(start, other)


def _other_steps(rank: int) -> list[str]:
    """Between the same two outer steps, ranks load states of different steps. Returns the errors."""
    model, told = Linear(), []
    outer = OuterStep(model, every=4, **TOPK)
    train(model, outer, rank, range(9))
    saved = copy.deepcopy(outer._part())
    outer.load_state_dict({**saved, "steps": 9 + rank})
    for at in range(9 + rank, 12):
        try:
            train(model, outer, rank, range(at, at + 1))
        except LgrecoError as error:
            told.append(str(error))
    return told


def test_ranks_compare_the_steps_of_the_states_that_they_load() -> None:
    for told in on_ranks(2, _other_steps):
        assert [text.split(":")[0] for text in told] == ["rank 1 and rank 0 have loaded OuterStep states of different steps"]


def _alone(rank: int, delay: int) -> tuple[list[str], torch.Tensor]:
    """Only rank 1 loads an older state, so its fragments have their turns at other steps. Returns the errors by step."""
    model, told = Linear(), []
    outer = OuterStep(model, every=4, fragments=2, delay=delay, **TOPK)
    train(model, outer, rank, range(10))
    outer.finish()
    good = copy.deepcopy(outer._part())
    train(model, outer, rank, range(10, 12))
    outer.finish()
    for at in range(12, 20):
        try:
            if at == 12 and rank == 1:
                outer.load_state_dict(good)
            train(model, outer, rank, range(at, at + 1))
        except LgrecoError as error:
            told.append(f"{at}: {error}")
            if delay > 0:
                train(model, outer, rank, range(at, at + 1))
    outer.finish()
    if delay == 0:
        outer.load_state_dict(good)
        train(model, outer, rank, range(24, 28))
    return told, torch.cat([start.flatten() for part in outer._part()["fragments"] for start in part["starts"]])


def test_a_rank_that_loads_alone_is_an_error_on_all_in_the_next_outer_step() -> None:
    (first, start), (second, other) = on_ranks(2, _alone, 0)
    assert first == second and torch.equal(start, other)
    words = "rank 1 has loaded an OuterStep state since the last outer step, and rank 0 has not: load on all ranks"
    assert len(first) == 4 and all(words in text for text in first)


def test_with_a_delay_no_rank_loads_into_an_outer_step_that_has_begun() -> None:
    (first, start), (second, other) = on_ranks(2, _alone, 1)
    assert first == [] and torch.equal(start, other)
    assert len(second) == 1 and second[0].startswith("12: this OuterStep has taken steps") and "make another OuterStep on all ranks" in second[0]


def _held(rank: int) -> None:
    """A load fails in the second fragment. The OuterStep is unchanged, and the error keeps no copies of states alive."""
    model = Linear()
    outer = OuterStep(model, every=2, fragments=2, **TOPK)
    train(model, outer, rank, range(6))
    first, second = outer._part()["fragments"]
    train(model, outer, rank, range(6, 8))

    def alive() -> int:
        gc.collect()
        return sum(x.numel() * x.element_size() for x in gc.get_objects() if type(x) is torch.Tensor)

    for wrong, expected in (({"starts": None}, TypeError), ({"starts": [torch.zeros(1)]}, ValueError)):
        state = {"steps": 6, "fragments": [first, {**second, **wrong}]}
        before, bytes_before = str(outer.state_dict()), alive()
        with pytest.raises(expected) as raised:
            outer.load_state_dict(state)
        assert alive() <= bytes_before and raised.value.__traceback__ is not None
        assert str(outer.state_dict()) == before


def test_a_load_that_fails_leaves_nothing() -> None:
    on_ranks(1, _held)


def _told_of_plans(rank: int) -> list[int]:
    """A state that ``on_plan`` saves includes the outer step of the plan."""
    model, told = Linear(), []

    def on_plan(_: Any) -> None:
        assert torch.equal(flat(model), torch.cat([s.flatten() for s in outer._part()["fragments"][0]["starts"]]))
        told.append(outer.steps)

    outer = OuterStep(model, every=2, on_plan=on_plan, **TOPK)
    train(model, outer, rank, range(12))
    return told


def test_plans_are_told_of_when_the_outer_step_is_made() -> None:
    for told in on_ranks(2, _told_of_plans):
        assert told and all(step % 2 == 0 for step in told)


def _saved_when_planned(rank: int, folder: str) -> list[tuple[int, bool]]:
    """``on_plan`` gets the OuterStep itself, and may save states that can be loaded later."""
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
