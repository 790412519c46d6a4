"""L-GreCo: decides, layer by layer and during training, how strongly to compress gradients, and compresses them.

``lgreco.plan`` plans for existing gradients. ``lgreco.torch`` is for training with PyTorch. ``lgreco.torch`` must be
imported separately, because ``lgreco`` itself does not need torch.
"""

import os

from lgreco._lgreco import LgrecoError, __version__, after_fork
from lgreco._plan import Plan, plan

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)

__all__ = ["LgrecoError", "Plan", "__version__", "plan"]
