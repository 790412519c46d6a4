"""Saving states as a folder with one file per rank."""

import contextlib
import ctypes
import os
import pathlib
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

import torch

from lgreco._lgreco import LgrecoError
from lgreco.torch.rank_parts import parts_of

Told = TypeVar("Told")
"""The result of loading."""


class Loaded(NamedTuple):
    """The result of a load: the layers in which state and model differ, and two step numbers.

    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> state = LGreCoState(None, model, method="topk")
    >>> longer = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)))
    >>> LGreCoState(None, longer, method="topk").load_state_dict(state.state_dict())
    Loaded(missing=['0.weight', '0.bias', '1.weight', '1.bias'], extra=['weight', 'bias'], misshaped=[], step=0, oldest_residual=0)
    """

    missing: list[str]
    """Layers that the state lacks. These layers start without residual, and stay uncompressed until the next plan."""
    extra: list[str]
    """Layers that the model lacks. Their residuals are lost."""
    misshaped: list[str]
    """Layers with another shape or type in the state. These layers are treated as missing and extra."""
    step: int
    """The step at which the run continues."""
    oldest_residual: int
    """The earliest step of a loaded residual. The compression errors of this residual's rank since that step are lost."""


class Checkpointed(Generic[Told]):
    """A state of which each rank saves its own part."""

    def _rank(self) -> int:
        """The global rank of this process."""
        raise NotImplementedError

    def _ranks(self) -> list[int]:
        """The global ranks of the processes that exchange with each other."""
        raise NotImplementedError

    def _step(self) -> int:
        """The next step."""
        raise NotImplementedError

    def _part(self) -> dict[str, Any]:
        """This rank's part of the state."""
        raise NotImplementedError

    def _load_part(self, part: Mapping[str, Any], residuals: Sequence[Mapping[str, Any]] | None = None) -> Told:
        """Continues from a rank's part, with the residuals of the parts ``residuals``; by default those of ``part``."""
        raise NotImplementedError

    def _load_parts(self, state: Mapping[str, Any], residuals: Sequence[Mapping[str, Any]] | None) -> Told:
        """Continues from a ``state_dict()``, which may have the parts of several ranks."""
        parts = parts_of(state)
        own = parts.get(self._rank(), next(iter(parts.values())))
        if residuals is None:
            if len(parts) > 1 and (not isinstance(own, Mapping) or own.get("ranks") != self._ranks()):
                whose = f"this is rank {self._rank()} of the group {self._ranks()}, and the state has parts of ranks {list(parts)}"
                raise LgrecoError(f"{whose}: pass the parts whose residuals this rank takes over as residuals=, [] for none")
            return self._load_part(own)
        taken = [parts_of(other) for other in residuals]
        for of in taken:
            if len(of) > 1:
                raise LgrecoError(f"an entry of residuals has parts of ranks {list(of)}: pass each part alone, of those that this rank takes over")
        return self._load_part(own, [part for of in taken for part in of.values()])

    def _is_own(self, state: Mapping[str, Any]) -> bool:
        """Whether this rank can continue from ``state`` alone, which was saved under this rank's number."""
        return True

    def _alike(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The state whose plan suits this rank best."""
        return states[0]

    def _taken(self, states: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The states whose residuals this rank takes over. The saved states are dealt out to the ranks in turn."""
        ranks = self._ranks()
        return list(states[ranks.index(self._rank()) :: len(ranks)])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes this rank's state to ``folder``, on rank 3 as ``rank3.pt``. All ranks must call ``save`` after the same
        step. Does not wait for the other ranks: call ``dist.barrier()`` between ``save`` and ``load``.

        Creates the folder if it is missing. Replaces an existing file as a whole. Raises OSError if writing fails.
        Raises LgrecoError if the existing file is from another model: each state needs a separate folder.
        """
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = _path(folder, self._rank())
        saved = {"ranks": self._ranks(), "step": self._step(), "state": self._part()}
        _expect_same_model(path, _layers_of(saved))
        _write(saved, path)

    def load(self, folder: str | os.PathLike[str]) -> Told:
        """Continues from the files that all ranks have saved in ``folder``. All ranks must call ``load`` and see all files.

        The number of ranks may differ from the saved run. The remaining ranks take over the residuals of ranks that are gone. New
        ranks begin without residuals. If ranks exchange in several groups, as with ``replicate_group``, the ranks must be the
        same as before. Files that an earlier, larger run has left are ignored.

        Raises LgrecoError if a file is damaged or was not written by ``save``, or if the folder has no complete set of files of one
        step. The error names the file or the folder.
        On failure, nothing has changed.
        """
        folder = pathlib.Path(folder)
        files = {rank: _read(path) for path in folder.glob("rank*.pt") if (rank := _rank_of(path)) is not None}
        together = {_together(file) for file in files.values()}
        whole = [ranks for ranks, step in together if all(rank in files and _together(files[rank]) == (ranks, step) for rank in ranks)]
        ranks = self._ranks()
        own = files.get(self._rank())
        if tuple(ranks) in whole and own is not None:
            if self._is_own(own["state"]):
                return self._load_part(own["state"])
            whole = [tuple(ranks)]
        if len(whole) != 1:
            saved = ", ".join(_saved(files, *part) for part in sorted(together)) or "none"
            raise LgrecoError(f"{folder}: the folder has no complete set of states of ranks {ranks}, nor exactly one of other ranks; states in it: {saved}")
        states = [files[rank]["state"] for rank in whole[0]]
        return self._load_part(self._alike(states), self._taken(states))


def _path(folder: pathlib.Path, rank: int) -> pathlib.Path:
    return folder / f"rank{rank}.pt"


class _File:
    """The file to which torch.save writes. This class keeps the system's first error, because PyTorch's error has neither
    path nor cause."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, part: bytes) -> int:
        try:
            if self.error is None:
                self._file.write(part)
        except OSError as error:
            self.error = error
        return len(part)

    def flush(self) -> None:
        pass


def _write(saved: Mapping[str, Any], path: pathlib.Path) -> None:
    """Replaces the whole file. After an error, the old file is unchanged. Raises OSError with the path."""
    unfinished = path.with_suffix(".unfinished")
    # If this call fails, the error contains the path.
    opened = unfinished.open("wb")
    file = _File(opened)
    try:
        try:
            torch.save(saved, file)  # type: ignore[arg-type]
            if file.error is not None:
                raise file.error
            opened.flush()
            os.fsync(opened.fileno())
        finally:
            # Closing writes the rest of the buffer, which may fail again.
            with contextlib.suppress(OSError):
                opened.close()
        unfinished.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _layers_of(file: Mapping[str, Any]) -> set[str]:
    """The names of the layers in a file."""
    state = file["state"]
    return {name for part in state.get("fragments", [state]) for name in part["layers"]}


def _expect_same_model(path: pathlib.Path, layers: set[str]) -> None:
    """Raises if ``path`` is a file with the state of a model with other layers, which must not be overwritten."""
    if not path.exists():
        return
    try:
        found = _layers_of(_read(path))
    except LgrecoError:
        return  # Nothing is lost.
    if found != layers:
        differs = f"which lacks the layer {min(layers - found)}" if layers - found else f"which has the layer {min(found - layers)}"
        raise LgrecoError(f"{path}: the file has the state of another model, {differs}: save to another folder, or delete the file")


def _rank_of(path: pathlib.Path) -> int | None:
    found = re.fullmatch(r"rank(\d+)\.pt", path.name)
    return None if found is None else int(found[1])


def _together(file: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """The ranks and the step in a file, which are equal in all files that were saved together."""
    return tuple(file["ranks"]), file["step"]


def _saved(files: Mapping[int, Mapping[str, Any]], ranks: tuple[int, ...], step: int) -> str:
    """Describes a set of states that were saved together, and which files of the set are missing."""
    missing = [rank for rank in ranks if rank not in files or _together(files[rank]) != (ranks, step)]
    without = f" without {', '.join(f'rank{rank}.pt' for rank in missing)}" if missing else ""
    return f"{list(ranks)} at step {step}{without}"


def _read(path: pathlib.Path) -> dict[str, Any]:
    try:
        with path.open("rb") as opened:
            has_end = zipfile.is_zipfile(opened)  # The directory of a zip file is at its end.
        file = torch.load(path, map_location="cpu", weights_only=True, mmap=True) if has_end else None
    except Exception as error:  # From pickle, zipfile or the system, depending on the damage.
        raise LgrecoError(f"{path}: {error}") from error
    if not has_end:
        raise LgrecoError(f"{path}: the file is truncated, or save() has not written it: load another saved state")
    if not isinstance(file, dict) or file.keys() != {"ranks", "step", "state"}:
        raise LgrecoError(f"{path}: save() has not written this file: load another saved state")
    return file


def to_tensor(part: bytes) -> torch.Tensor:
    """The bytes as a uint8 tensor, which ``weights_only=True`` loads."""
    return torch.frombuffer(bytearray(part), dtype=torch.uint8)


def to_bytes(part: torch.Tensor) -> bytes:
    """The bytes of a uint8 tensor on any device."""
    part = part.contiguous().cpu()
    return ctypes.string_at(part.data_ptr(), part.numel())
