"""Compressed gradients for PyTorch: DistributedDataParallel, FullyShardedDataParallel, fully_shard.

Start processes and connect them as usual in PyTorch, with ``torchrun`` and ``init_process_group``.

>>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
>>> state = LGreCoState(None, model, method="topk")
>>> model.register_comm_hook(state, lgreco_hook)
>>> model(torch.ones(1, 64)).sum().backward()
>>> state.settings  # of the first 100 steps
{'weight': 'dense', 'bias': 'dense'}
"""

from lgreco.torch.checkpoint import Loaded
from lgreco.torch.collectives import ExchangeError
from lgreco.torch.ddp import LGreCoState, lgreco_hook
from lgreco.torch.fsdp import LGreCoShardedState
from lgreco.torch.fsdp1 import LGreCoFSDP1State
from lgreco.torch.outer import OuterStep
from lgreco.torch.rank_parts import empty_state_dict
from lgreco.torch.register import register

__all__ = [
    "ExchangeError",
    "LGreCoFSDP1State",
    "LGreCoShardedState",
    "LGreCoState",
    "Loaded",
    "OuterStep",
    "empty_state_dict",
    "lgreco_hook",
    "register",
]
