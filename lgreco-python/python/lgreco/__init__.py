"""L-GreCo: decides, layer by layer and while a model trains, how hard to compress gradients, and does the compressing.

``lgreco.plan`` chooses for gradients that are there already. ``lgreco.torch`` is for training with PyTorch; it is imported
on its own, so that this package does not need torch.
"""

import os

from lgreco._lgreco import LgrecoError, __version__, after_fork
from lgreco._plan import Plan, plan

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)

__all__ = ["LgrecoError", "Plan", "__version__", "plan"]
