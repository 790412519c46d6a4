"""An imitated GPU for tests, by the fake driver of lgreco-cuda (simt/fake_driver.cpp). Its device memory is host memory."""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from lgreco.torch import LGreCoState
from lgreco.torch.collectives import memory
from lgreco.torch.cuda import Cuda
from lgreco.torch.device_exchange import Residuals


class Imitation(Cuda):
    """An imitated device with tensors in host memory. The fake driver does enqueued work only when a call waits, so methods wait
    before they read memory."""

    backend = "gloo"

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._driver = ctypes.CDLL("libcuda.so.1")
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        assert self._driver.cuInit(0) == 0
        assert self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        self._context = context
        self._call("cuStreamCreate", ctypes.byref(stream), 1)
        self._handle = stream
        aside = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(aside), 1)
        self._other = aside
        self.allocated = 0

    def lacks(self, group: dist.ProcessGroup | None) -> str | None:
        return None

    def _call(self, function: str, *arguments: object) -> None:
        # Like torch, makes the device's context current on every thread that uses it.
        assert self._driver.cuCtxSetCurrent(self._context) == 0
        assert getattr(self._driver, function)(*arguments) == 0, function

    @contextmanager
    def stream(self) -> Iterator[int]:
        yield self._handle.value or 0

    def rejoin(self) -> None:
        self._call("cuStreamSynchronize", self._handle)

    def allocate(self, length: int) -> torch.Tensor:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(length))
        self.allocated += 1
        return memory(address.value, length, torch.uint8)

    def aside(self) -> int:
        self._call("cuStreamSynchronize", self._handle)
        return self._other.value or 0

    def allocate_aside(self, length: int) -> torch.Tensor:
        return self.allocate(length)

    def part(self, memory: torch.Tensor, address: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        self._call("cuStreamSynchronize", self._handle)
        return super().part(memory, address, length, dtype)

    def later(self, numbers: torch.Tensor) -> Callable[[], torch.Tensor]:
        values = numbers.clone()
        return lambda: values

    def mark(self) -> float:  # type: ignore[override]
        self._call("cuStreamSynchronize", self._handle)
        return self.now()

    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:  # type: ignore[override]
        return end - start

    def future(self) -> torch.futures.Future[torch.Tensor]:
        return torch.futures.Future()

    def launches(self) -> int:
        """Kernels launched in this process so far."""
        counted = (ctypes.c_int * 9)()
        self._driver.fake_cuda_state(counted)
        return counted[7]


def imitated(_: Iterable[torch.Tensor]) -> Imitation:
    """Returns an imitated device, whatever the tensors are."""
    return Imitation()


def on_device(state: LGreCoState, module: torch.nn.Module) -> torch.Tensor:
    """The residuals on the device, read without the controller."""
    assert state._device is not None and state._device.fault() is None
    named, parts = dict(module.named_parameters()), {}
    for key, bucket in state._device._buckets.items():
        lens = [named[state.names[layer]].numel() for layer in key]
        of_bucket = Residuals(state._device.cuda, bucket.bucket, bucket.memory, lens).current()
        parts.update(zip(key, torch.split(of_bucket, lens)))
    return torch.cat([parts[layer] for layer in range(len(state.names))])
