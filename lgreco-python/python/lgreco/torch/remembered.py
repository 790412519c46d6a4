"""What a bucket in a GPU's memory remembers, as tensors for work that is enqueued between its steps."""

import torch

from lgreco._lgreco import DeviceBucket
from lgreco.torch.cuda import Cuda


class Remembered:
    """The residuals of all layers of a bucket, float32, one after the other."""

    def __init__(self, cuda: Cuda, bucket: DeviceBucket, memory: torch.Tensor, lens: list[int]) -> None:
        self._cuda = cuda
        self._bucket = bucket
        self._memory = memory
        self.lens = lens

    def both(self) -> torch.Tensor:
        """Both places that there are for them, a row each; the other one has those of the step before."""
        return self._cuda.part(self._memory, self._bucket.residuals[0], 8 * sum(self.lens), torch.float32).view(2, -1)

    def counted(self) -> torch.Tensor:
        """A copy of those that count."""
        second = self._cuda.part(self._memory, self._bucket.residuals[1], 4, torch.int32) != 0
        both = self.both()
        return torch.where(second, both[1], both[0])
