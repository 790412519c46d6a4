"""Notices weights that the user loads into a model during local training, and compares them between ranks."""

import hashlib
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from lgreco._lgreco import LgrecoError
from lgreco.torch.collectives import Started, gather


_FAILED, CHANGED, TORN = 1, 2, 3
"""Codes by which ranks inform each other about the kind of a failure."""
WHOLE_AGAIN = "load a saved state on all ranks (with a delay into a new OuterStep), or call restart() on all"
"""What to do when an outer step was made only in part."""
_WHY = {
    _FAILED: "its own error says why",
    CHANGED: "its model has changed since the OuterStep was made",
    TORN: f"it has made its last outer step only in part: {WHOLE_AGAIN}",
}
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(parameters: Iterable[torch.Tensor]) -> str:
    """A checksum of the parameters' bits, with little memory and without a copy from a GPU."""
    sums = []
    for values in parameters:
        bits = values.detach().reshape(-1).view(_BITS.get(values.element_size(), torch.uint8))
        sums.append(int(sum(piece.sum(dtype=torch.int64) for piece in torch.split(bits, 1 << 20))))
    return hashlib.sha256(repr(sums).encode()).hexdigest()


_PARTS = {
    "steps": "of different steps",
    "starts": "with different parameters after the last outer step",
    "velocities": "with different velocities",
}
"""The parts of an OuterStep's state that must be the same on all ranks, each with the words for the error about a
difference."""


class LoadedWeights:
    """The weights and the state that this rank has loaded since the last outer step. The next outer step compares them between
    ranks."""

    def __init__(self, group: dist.ProcessGroup, index: int) -> None:
        """``index`` is the number of the fragment. All fragments compare in the same ``group``, so ranks also notice if they
        are at different fragments."""
        self._group, self._index = group, index
        self._loaded: dict[int | str, str] = {}
        """Hashes that are not sent yet, of loaded values, by parameter or by part of a loaded state."""
        self._lacks_some = False
        """Whether weights with unknown values were loaded."""
        self._sent: dict[int | str, str] = {}
        """Hashes sent in an outer step that is under way or has failed. The next outer step sends these hashes again."""
        self._sent_lacks_some = False
        self._under_way: tuple[Started, torch.Tensor, LgrecoError | None] | None = None
        """The all-gather, its memory, and this rank's error."""

    def note(self, parameter: int, values: torch.Tensor) -> None:
        """Records the values that were loaded into a parameter."""
        part = values.cpu().reshape(-1).view(torch.uint8)
        self._loaded[parameter] = hashlib.sha256(part.numpy().tobytes()).hexdigest()

    def note_state(self, steps: int, starts: Iterable[torch.Tensor], velocities: Iterable[torch.Tensor]) -> None:
        """Records a loaded state, which replaces all weights that were loaded before."""
        self.forget()
        self.give_up()
        self._loaded.update(steps=str(steps), starts=checksum(starts), velocities=checksum(velocities))

    def note_unknown(self) -> None:
        """Records that weights with unknown values were loaded."""
        self._lacks_some = True

    def forget(self) -> None:
        """Forgets all weights, because all ranks continue from the same weights."""
        self._loaded.clear()
        self._lacks_some = False
        self._forget_sent()

    def _forget_sent(self) -> None:
        self._sent, self._sent_lacks_some = {}, False

    def send(self, failure: LgrecoError | None, kind: int = _FAILED) -> None:
        """Starts the comparison, and also tells the other ranks the kind of this rank's ``failure``, if there is one."""
        self._sent, self._loaded = self._sent | self._loaded, {}
        self._sent_lacks_some, self._lacks_some = self._sent_lacks_some or self._lacks_some, False
        if failure is None and self._sent_lacks_some:
            kind = CHANGED
            failure = LgrecoError("weights were loaded into a FullyShardedDataParallel after the OuterStep was made: call restart() after that")
        weights = sorted((at, values) for at, values in self._sent.items() if isinstance(at, int))
        outcome = 0 if failure is None else kind
        own = [outcome, self._index, _word(weights), *(_word(self._sent.get(part)) for part in _PARTS)]
        told = torch.zeros(len(own) * self._group.size(), dtype=torch.int64, device="cpu")
        at = len(own) * self._group.rank()
        told[at : at + len(own)] = torch.tensor(own, device="cpu")
        self._under_way = gather(told, self._group), told, failure

    def compare(self) -> LgrecoError | None:
        """Waits for the comparison. Returns the error, which all ranks get.

        Without an error, the sent hashes are forgotten. Raises RuntimeError when the network has failed.
        """
        assert self._under_way is not None
        (work, told, failure), self._under_way = self._under_way, None
        work.wait()
        first: list[int]
        first, *_ = every = told.view(self._group.size(), -1).tolist()
        for rank, own in enumerate(every):
            if failure is None and own[0]:
                failure = LgrecoError(f"rank {rank} cannot make the outer step: {_WHY[own[0]]}")
            failure = failure or _differing_states(rank, own[3:], first[3:])
            if failure is None and own[1] != first[1]:
                what = f"rank {rank} and rank 0 make outer steps of different fragments"
                failure = LgrecoError(f"{what}: call step() equally often on all ranks, or load on all what they saved after the same step")
            if failure is None and own[2] != first[2]:
                what = f"rank {rank} and rank 0 have not loaded the same weights since the last outer step"
                failure = LgrecoError(f"{what}: load the same on all ranks, or call restart() on all")
        if failure is None:
            self._forget_sent()
        return failure

    def give_up(self) -> None:
        """Drops the comparison of an outer step that has failed."""
        self._under_way = None


def _word(value: object) -> int:
    """A hash that fits an int64; 0 for None."""
    return 0 if value is None else int(hashlib.sha256(repr(value).encode()).hexdigest()[:15], 16)


def _differing_states(rank: int, own: list[int], first: list[int]) -> LgrecoError | None:
    """The error if a rank's hashes of a loaded state differ from rank 0's."""
    if own == first:
        return None
    if any(own) != any(first):
        loaded, other = (rank, 0) if any(own) else (0, rank)
        what = f"rank {loaded} has loaded an OuterStep state since the last outer step, and rank {other} has not"
    else:
        differing = next(words for words, here, there in zip(_PARTS.values(), own, first) if here != there)
        what = f"rank {rank} and rank 0 have loaded OuterStep states {differing}"
    return LgrecoError(f"{what}: load on all ranks what they saved after the same step")


class Loads:
    """Notices parameters that are loaded by ``load_state_dict``, as long as this object is alive."""

    def __init__(self, model: torch.nn.Module, told: Callable[[list[torch.Tensor]], None]) -> None:
        """``told`` is a method, whose object this class does not keep alive."""
        self._told = weakref.WeakMethod(told)
        handles: list[Any] = []
        for part in model.modules():
            before = _Before()
            handles.append(part.register_load_state_dict_pre_hook(before))  # type: ignore[no-untyped-call]
            handles.append(part.register_load_state_dict_post_hook(_After(before, self)))  # type: ignore[no-untyped-call]
        weakref.finalize(self, _remove, handles).atexit = False

    def tell(self, loaded: list[torch.Tensor]) -> None:
        told = self._told()
        if told is not None:
            told(loaded)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


class _Hook:
    """A hook of one module. In copies and pickles of the model, this hook becomes a hook that does nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _NoHook, ()


class _NoHook:
    """The hook of a copied model."""

    def __call__(self, *_: Any) -> None:
        pass


class _Before(_Hook):
    """Records which of the module's own parameters will be loaded."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __call__(self, module: torch.nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
        self.found = [name for name, _ in module.named_parameters(recurse=False) if f"{prefix}{name}" in state]


class _After(_Hook):
    """Reports the module's parameters that were loaded."""

    def __init__(self, before: _Before, loads: Loads) -> None:
        self._before, self._loads = before, weakref.ref(loads)

    def __call__(self, module: torch.nn.Module, _: Any) -> None:
        loads = self._loads()
        found, self._before.found = self._before.found, []
        if loads is not None and found:
            loads.tell([getattr(module, name) for name in found])
