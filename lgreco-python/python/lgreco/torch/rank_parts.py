"""The parts of a state, one per rank, and PyTorch's distributed checkpoints of them.

A distributed checkpoint merges what all ranks save, and keeps only one rank's value for each key. So a ``state_dict()`` has its
rank in its key.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from lgreco._lgreco import LgrecoError

_KEY = re.compile(r"rank(\d+)")


def key_of(rank: int) -> str:
    """The key of a rank's part in a ``state_dict()``."""
    return f"rank{rank}"


def parts_of(state: Mapping[str, Any]) -> dict[int | None, Mapping[str, Any]]:
    """The parts in a ``state_dict()`` by rank, in the order of the ranks.

    A state from before there were keys of ranks is returned as the part of rank None, and so is what is no state.
    """
    keys = [_KEY.fullmatch(str(key)) for key in state] if isinstance(state, Mapping) else []
    if not keys or not all(keys):
        return {None: state}
    return dict(sorted((int(key[1]), state[key[0]]) for key in keys if key is not None))


def empty_state_dict(metadata: Metadata, *path: str) -> dict[str, Any]:
    """An empty state with the tensor sizes of the state that a distributed checkpoint has under ``path``.

    ``torch.distributed.checkpoint.load`` reads into tensors of the saved sizes. The tensors of a state grow in training, so a
    new state's ``state_dict()`` has tensors of other sizes. ``metadata`` comes from the checkpoint's storage reader.

    Raises LgrecoError if the checkpoint has nothing under ``path``.

    >>> from tempfile import TemporaryDirectory
    >>> from torch.distributed import checkpoint
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> state = LGreCoState(None, model, method="topk")
    >>> folder = [TemporaryDirectory().name]
    >>> dist.broadcast_object_list(folder)
    >>> _ = checkpoint.save({"model": model.state_dict(), "lgreco": state}, checkpoint_id=folder[0])
    >>> reader, own = checkpoint.FileSystemReader(folder[0]), f"rank{dist.get_rank()}"
    >>> saved = {"lgreco": {own: empty_state_dict(reader.read_metadata(), "lgreco", own)}}
    >>> checkpoint.load(saved, storage_reader=reader)
    >>> state.load_state_dict(saved["lgreco"]).missing
    []
    """
    empty: dict[Any, Any] = {}
    for key, stored in metadata.state_dict_metadata.items():
        own = (metadata.planner_data or {}).get(key, (key,))
        if own[: len(path)] != path:
            continue
        *outer, name = own[len(path) :]
        place = empty
        for part in outer:
            place = place.setdefault(part, {})
        # Loading replaces the None of values that are not tensors.
        place[name] = None
        if isinstance(stored, TensorStorageMetadata):
            place[name] = torch.empty(stored.size, dtype=stored.properties.dtype, device="cpu")
    if not empty:
        raise LgrecoError(f"the checkpoint has no {'.'.join(path)}")
    return _with_lists(empty)  # type: ignore[no-any-return]


def _with_lists(part: Any) -> Any:
    """Replaces dictionaries with numbers as keys by lists."""
    if not isinstance(part, dict):
        return part
    whole = {key: _with_lists(value) for key, value in part.items()}
    return [whole[number] for number in range(len(whole))] if 0 in whole else whole
