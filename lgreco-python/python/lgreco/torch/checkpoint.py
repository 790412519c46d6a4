"""States in PyTorch's distributed checkpoints."""

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from lgreco._lgreco import LgrecoError


def empty_state_dict(metadata: Metadata, *path: str) -> dict[str, Any]:
    """A state without content, as large as the one that a distributed checkpoint has under ``path``.

    ``torch.distributed.checkpoint.load`` reads into tensors of the sizes that were saved. A state's grow while it trains, so a
    new one's ``state_dict()`` does not do. ``metadata`` is the checkpoint's, from its storage reader.

    Raises LgrecoError when the checkpoint has nothing there.

    >>> from tempfile import TemporaryDirectory
    >>> from torch.distributed import checkpoint
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> state = LGreCoState(None, model, method="topk")
    >>> folder = [TemporaryDirectory().name]
    >>> dist.broadcast_object_list(folder)
    >>> rank = f"rank{dist.get_rank()}"  # every rank has a state of its own
    >>> _ = checkpoint.save({rank: state.state_dict()}, checkpoint_id=folder[0])
    >>> reader = checkpoint.FileSystemReader(folder[0])
    >>> saved = {rank: empty_state_dict(reader.read_metadata(), rank)}
    >>> checkpoint.load(saved, storage_reader=reader)
    >>> state.load_state_dict(saved[rank]).missing
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
        # The rest comes as it was.
        place[name] = None
        if isinstance(stored, TensorStorageMetadata):
            place[name] = torch.empty(stored.size, dtype=stored.properties.dtype)
    if not empty:
        raise LgrecoError(f"the checkpoint has no {'.'.join(path)}")
    return _with_lists(empty)  # type: ignore[no-any-return]


def _with_lists(part: Any) -> Any:
    """With lists in place of what has numbers as keys."""
    if not isinstance(part, dict):
        return part
    whole = {key: _with_lists(value) for key, value in part.items()}
    return [whole[number] for number in range(len(whole))] if 0 in whole else whole
