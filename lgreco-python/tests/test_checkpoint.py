"""Tests states in a folder with one file per rank. Runs resume with the same number of ranks, or with another."""

import pathlib
import resource
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients
from ranks import on_ranks
from test_errors import step, wrapped
from test_resume import make, own, train
from torch.nn.parallel import DistributedDataParallel as DDP

import lgreco
from lgreco.torch import LGreCoState, OuterStep, register

OPTIONS: dict[str, Any] = {"method": "topk", "default": 0.05, "start_iter": 2, "period": 4, "window": 1, "min_elements": 64}


def _state() -> tuple[torch.nn.Module, LGreCoState]:
    ddp = DDP(Linear())
    state = register(ddp, **OPTIONS)
    assert isinstance(state, LGreCoState)
    return ddp, state


def _all_residuals(state: LGreCoState) -> torch.Tensor:
    """The sum of the residuals over all ranks."""
    values = torch.cat([state.residual(name) for name in SHAPES])
    dist.all_reduce(values)
    return values


def _resumed(rank: int, folder: str, door: str) -> bool:
    module, state = make(door)
    train(module, rank, range(5))
    state.save(folder)
    parameters = [values.clone() for values in own(module)]
    train(module, rank, range(5, 9))
    expected = torch.cat([values.flatten() for values in own(module)])
    module, again = make(door)
    for place, values in zip(own(module), parameters, strict=True):
        place.copy_(values)
    dist.barrier()
    assert again.load(folder).step == 5
    train(module, rank, range(5, 9))
    return torch.equal(expected, torch.cat([values.flatten() for values in own(module)]))


@pytest.mark.parametrize("door, world", [("FSDP2", 3), ("HSDP", 4)])
def test_a_folder_continues_a_run_bit_for_bit(door: str, world: int, tmp_path: pathlib.Path) -> None:
    assert all(on_ranks(world, _resumed, str(tmp_path / "new" / "folder"), door))
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {f"rank{rank}.pt" for rank in range(world)}


def _saved(rank: int, folder: str) -> torch.Tensor:
    module, state = _state()
    train(module, rank, range(6))
    state.save(folder)
    return _all_residuals(state)


def _loaded(rank: int, folder: str) -> tuple[torch.Tensor, dict[str, str], dict[str, str]]:
    module, state = _state()
    assert state.load(folder).step == 6
    found, settings = _all_residuals(state), state.settings
    train(module, rank, range(6, 8))
    return found, settings, state.settings


@pytest.mark.parametrize("before, after", [(3, 2), (2, 3), (4, 1)])
def test_other_ranks_take_over_all_that_is_remembered(before: int, after: int, tmp_path: pathlib.Path) -> None:
    saved = on_ranks(before, _saved, str(tmp_path))[0]
    assert saved.any()
    for found, settings, _ in on_ranks(after, _loaded, str(tmp_path)):
        # The mean residual must be the same, because residuals contribute to a mean over the ranks.
        torch.testing.assert_close(found / after, saved / before)
        assert any(setting.startswith("topk") for setting in settings.values())


def test_files_of_an_earlier_larger_run_are_not_looked_at(tmp_path: pathlib.Path) -> None:
    on_ranks(4, _saved, str(tmp_path))
    saved = on_ranks(2, _saved, str(tmp_path))[0]
    for found, *_ in on_ranks(4, _loaded, str(tmp_path)):
        torch.testing.assert_close(found / 4, saved / 2)


def _error(rank: int, folder: str) -> str:
    _, state = _state()
    settings = state.settings
    try:
        state.load(folder)
    except lgreco.LgrecoError as error:
        assert state.settings == settings
        return str(error)
    return "none"


def test_what_is_missing_or_damaged_is_named(tmp_path: pathlib.Path) -> None:
    for said in on_ranks(2, _error, str(tmp_path / "nothing")):
        assert said.startswith(str(tmp_path / "nothing")) and said.endswith("states in it: none")
    on_ranks(3, _saved, str(tmp_path))
    (tmp_path / "rank1.pt").rename(tmp_path / "elsewhere.pt")
    for said in on_ranks(2, _error, str(tmp_path)):
        assert said.startswith(f"{tmp_path}: the folder has no complete set of states of ranks [0, 1]") and said.endswith("in it: [0, 1, 2] at step 6 without rank1.pt")
    for content in (b"", b"PK", (tmp_path / "rank0.pt").read_bytes()[:-900]):
        (tmp_path / "rank1.pt").write_bytes(content)
        for said in on_ranks(2, _error, str(tmp_path)):
            assert said.startswith(f"{tmp_path / 'rank1.pt'}: the file is truncated, or save() has not written it")
    torch.save({"model": torch.zeros(1)}, tmp_path / "rank1.pt")
    for said in on_ranks(2, _error, str(tmp_path)):
        assert said == f"{tmp_path / 'rank1.pt'}: save() has not written this file: load another saved state"


def _at_other_steps(rank: int, folder: str) -> str:
    module, state = _state()
    for at in (4, 6):
        train(module, rank, range(at - 2, at))
        if at == 4 + 2 * rank:
            state.save(folder)
    dist.barrier()
    return _error(rank, folder)


def test_files_of_different_steps_are_not_loaded(tmp_path: pathlib.Path) -> None:
    for said in on_ranks(2, _at_other_steps, str(tmp_path)):
        assert said.endswith("states in it: [0, 1] at step 2 without rank1.pt, [0, 1] at step 4 without rank0.pt")


def _of_another(rank: int) -> tuple[str, int]:
    module, state = _state()
    train(module, rank, range(4))
    both: list[Any] = [None, None]
    dist.all_gather_object(both, state.state_dict())
    if rank == 0:
        return "", state.load_state_dict(both[0]).step
    with pytest.raises(lgreco.LgrecoError) as raised:
        state.load_state_dict(both[0])
    return str(raised.value), state.load_state_dict(both[0], [both[1]]).step


def test_another_ranks_residuals_are_not_taken_unasked() -> None:
    (_, step), (said, other) = on_ranks(2, _of_another)
    assert said.startswith("this is rank 1, and the state is that of rank 0, whose residuals that one takes over") and step == other == 4


def _outer(rank: int, folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    def made() -> tuple[torch.nn.Module, OuterStep]:
        module = Linear()
        return module, OuterStep(module, every=2, method="topk", default=0.05, min_elements=64)

    def go_on(module: torch.nn.Module, outer: OuterStep, steps: range) -> torch.Tensor:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        for step in steps:
            optimizer.zero_grad()
            module(gradients(rank, step)).backward()
            optimizer.step()
            outer.step()
        return torch.cat([p.detach().flatten() for p in module.parameters()])

    module, outer = made()
    go_on(module, outer, range(6))
    outer.save(folder)
    parameters = [p.detach().clone() for p in module.parameters()]
    expected = go_on(module, outer, range(6, 12))
    module, outer = made()
    with torch.no_grad():
        for p, values in zip(module.parameters(), parameters, strict=True):
            p.copy_(values)
    dist.barrier()
    outer.load(folder)
    return expected, go_on(module, outer, range(6, 12))


def test_outer_steps_go_on_from_a_folder(tmp_path: pathlib.Path) -> None:
    for expected, found in on_ranks(2, _outer, str(tmp_path)):
        assert torch.equal(expected, found)


def _unwritable(rank: int, folder: str) -> list[tuple[str, str | None, list[str]]]:
    """Saves to a full disk, to a folder that is a file, and to a path at which a directory is. Returns errors, paths, and the
    remaining files."""
    module, state = _state()
    train(module, rank, range(3))
    place, told = pathlib.Path(folder) / str(rank), []
    (place / "directory" / f"rank{rank}.pt").mkdir(parents=True)
    (place / "other" / f"rank{rank}.unfinished").mkdir(parents=True)
    (place / "file").write_text("")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    outer = OuterStep(Linear(), every=2, method="topk")
    for name, saved, limit in [("full", state, 1000), ("full", outer, 1000), ("full", state, 0), ("file", state, None), ("directory", state, None), ("other", state, None)]:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            saved.save(place / name)
        except OSError as error:
            told.append((name, error.filename, [path.name for path in place.glob("full/*")]))
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    state.save(place / "full")
    before = (place / "full" / f"rank{rank}.pt").read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    with pytest.raises(OSError):
        state.save(place / "full")
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (place / "full" / f"rank{rank}.pt").read_bytes() == before
    with pytest.raises(lgreco.LgrecoError, match=r"full/rank\d.pt: the file has the state of another model, which lacks the layer joined.0: save"):
        OuterStep(Linear(), every=2, joined=True).save(place / "full")
    assert (place / "full" / f"rank{rank}.pt").read_bytes() == before
    assert {path.name for path in place.glob("*/rank*.unfinished")} == {f"rank{rank}.unfinished"}  # the directory
    return told


def test_what_cannot_be_written_is_an_error_with_its_path_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    for rank, told in enumerate(on_ranks(2, _unwritable, str(tmp_path))):
        assert [name for name, *_ in told] == ["full", "full", "full", "file", "directory", "other"]
        for name, path, left in told:
            assert path is not None and path.startswith(str(tmp_path / str(rank) / name)) and left == []


def _loaded_in_flight(rank: int) -> tuple[list[str], torch.Tensor]:
    """In one step, rank 1 loads a state while buckets are exchanged. Returns the errors, and the means of this step and the next
    step."""
    module = wrapped("ddp")
    state = register(module, **OPTIONS)
    for at in range(6):
        step(module, rank, at)
    saved, told = state.state_dict(), []

    def load(_: torch.Tensor) -> None:
        if state._under_way() and not told:
            try:
                state.load_state_dict(saved)
            except lgreco.LgrecoError as error:
                told.append(str(error))

    handles = [p.register_post_accumulate_grad_hook(load) for p in module.parameters()] if rank == 1 else []
    means = [step(module, rank, 6)]
    for handle in handles:
        handle.remove()
    means.append(step(module, rank, 7))
    state.load_state_dict(saved)
    return told, torch.cat(means)


def test_a_state_is_not_loaded_while_buckets_are_exchanged() -> None:
    (nothing, first), (told, second) = on_ranks(2, _loaded_in_flight)
    assert nothing == [] and torch.equal(first, second)
    assert told == ["a step is under way, and the other ranks wait for its buckets: load on all ranks between two steps"]
