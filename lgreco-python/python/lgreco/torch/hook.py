"""The communication hook of DistributedDataParallel."""

import torch

from lgreco.torch.bucket import GradBucket
from lgreco.torch.state import LGreCoState


def lgreco_hook(state: LGreCoState, bucket: GradBucket, *shard: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Replaces a bucket's gradients by the mean over the workers, compressed as ``state`` has decided.

    Registered by ``model.register_comm_hook(state, lgreco_hook)``. The first collective of every bucket goes on while the
    backward pass does; the rest follows at the end of it. A hook of your own may call this one, and wait for its future: where
    some rank has such a hook, the backward pass waits for every bucket.

    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> state = LGreCoState(None, model, settings={"weight": "topk 41"}, start_iter=2)
    >>> model.register_comm_hook(state, lgreco_hook)
    >>> for _ in range(4):
    ...     model.zero_grad()
    ...     model(torch.linspace(0, 1, 64)[None]).square().sum().backward()
    >>> int(model.module.weight.grad.count_nonzero())  # the others are remembered
    41

    Raises LgrecoError on every rank, out of ``backward``, when a gradient is not finite or something went wrong on one. Where
    gradients stay on a GPU that is the next ``backward``; the means of the bucket at fault were zeros. With ``grad_scaler`` gradients
    that are not finite reach that instead, on every rank.
    """
    if shard:
        raise TypeError(
            "lgreco_hook is for DistributedDataParallel, and was registered with FullyShardedDataParallel: leave register_comm_hook "
            "out, and call lgreco.torch.register(model)"
        )
    if not isinstance(bucket, GradBucket):
        raise TypeError(
            f"lgreco_hook was given a {type(bucket).__name__} instead of a GradBucket: torch.compile with "
            "optimize_ddp='python_reducer' calls hooks so; use optimize_ddp='ddp_optimizer' or False. FullyShardedDataParallel with "
            "NO_SHARD does, too; call lgreco.torch.register(model) instead of register_comm_hook"
        )
    if not isinstance(state, LGreCoState):
        raise TypeError(f"lgreco_hook was registered with a {type(state).__name__} as its state, expected an LGreCoState")
    return state.exchange(bucket)
