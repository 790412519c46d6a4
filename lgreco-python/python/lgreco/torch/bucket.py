"""DDP's bucket, under the name that its stubs have and the class that register_comm_hook asks for."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket
else:
    from torch.distributed import GradBucket

__all__ = ["GradBucket"]
