"""Compressed gradients for PyTorch: DistributedDataParallel, FullyShardedDataParallel, fully_shard.

>>> state = LGreCoState(None, model, method="topk")           # doctest: +SKIP
>>> model.register_comm_hook(state, lgreco_hook)              # doctest: +SKIP
"""

from lgreco.torch.fsdp import LGreCoShardedState
from lgreco.torch.fsdp1 import LGreCoFSDP1State
from lgreco.torch.hook import lgreco_hook
from lgreco.torch.outer import OuterStep
from lgreco.torch.register import register
from lgreco.torch.state import LGreCoState

__all__ = ["LGreCoFSDP1State", "LGreCoShardedState", "LGreCoState", "OuterStep", "lgreco_hook", "register"]
