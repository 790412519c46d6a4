"""Compressed gradients for PyTorch's DistributedDataParallel.

>>> state = LGreCoState(None, model, method="topk")           # doctest: +SKIP
>>> model.register_comm_hook(state, lgreco_hook)              # doctest: +SKIP
"""

from lgreco.torch.hook import lgreco_hook
from lgreco.torch.state import LGreCoState

__all__ = ["LGreCoState", "lgreco_hook"]
