"""What exchanges in a GPU's memory use of torch: memory, streams, events, and copies to the host for which no step waits."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


_LOG = logging.getLogger("lgreco")


class Cuda:
    """A CUDA device, and the stream for all exchanges: torch's current stream at the first exchange."""

    backend = "nccl"
    """The backend of process groups whose collectives use the device's memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        self._aside: torch.cuda.Stream | None = None

    def lacks(self, group: dist.ProcessGroup | None) -> str | None:
        """Why exchanges on the device cannot use this process group; None if they can."""
        return None if "cuda:nccl" in dist.get_backend_config(group) else "a process group without NCCL"

    @contextmanager
    def stream(self) -> Iterator[int]:
        """Within this context, work is enqueued in the stream for exchanges, after all work in the current stream.
        Yields the handle of that stream."""
        current = torch.cuda.current_stream(self.device)
        self._stream = self._stream or current
        if current != self._stream:
            self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield self._stream.cuda_stream

    def rejoin(self) -> None:
        """Makes later work in the current stream wait for all work in the stream for exchanges."""
        current = torch.cuda.current_stream(self.device)
        if self._stream is not None and current != self._stream:
            current.wait_stream(self._stream)

    def allocate(self, length: int) -> torch.Tensor:
        """Memory of ``length`` bytes from torch's caching allocator."""
        return torch.empty(length, dtype=torch.uint8, device=self.device)

    def aside(self) -> int:
        """The handle of a second stream, for plans. The next work in this stream waits for all work in the current stream."""
        self._aside = self._aside or torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._aside.wait_stream(torch.cuda.current_stream(self.device))
        return self._aside.cuda_stream

    def allocate_aside(self, length: int) -> torch.Tensor:
        """Like ``allocate``, for the second stream."""
        with torch.cuda.stream(self._aside):
            return self.allocate(length)

    def part(self, memory: torch.Tensor, address: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor over ``length`` bytes of ``memory``."""
        start = address - memory.data_ptr()
        return memory[start : start + length].view(dtype)

    def later(self, numbers: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Copies numbers to the host after all work enqueued so far. Returns a function that waits for the copy and returns the
        numbers."""
        told = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
        told.copy_(numbers, non_blocking=True)
        done = torch.cuda.current_stream(self.device).record_event()

        def values() -> torch.Tensor:
            done.synchronize()
            return told

        return values

    def mark(self) -> torch.cuda.Event:
        """An event after all work enqueued so far."""
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds between two events. Waits for the later event."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """A future whose value is valid after all work enqueued so far."""
        return torch.futures.Future(devices=[self.device])


def device_of(parameters: Iterable[torch.Tensor]) -> Cuda | None:
    """The NVIDIA GPU that has all parameters; None if no single GPU has them all."""
    devices = {parameter.device for parameter in parameters}
    if len(devices) != 1 or torch.version.cuda is None:
        return None
    device = devices.pop()
    return Cuda(device) if device.type == "cuda" else None


def where_they_stay(device: Cuda | None, group: dist.ProcessGroup | None, options: Mapping[str, Any]) -> Cuda | None:
    """The device if gradients are exchanged in its memory. None if gradients are copied to the host, which is logged."""
    why = None if device is None else device.lacks(group) or _obstacle(options)
    if why is None:
        return device
    if dist.get_rank(group) == 0:
        _LOG.warning("gradients are copied to the host to be compressed, because of %s", why)
    return None


def _obstacle(options: Mapping[str, Any]) -> str | None:
    """The first option that prevents exchanges in a GPU's memory; None if no option does."""
    obstacles = {
        "residual_dtype": options.get("residual_dtype", torch.float32) != torch.float32,
        "route": (options.get("route") or "all_gather") not in ("all_gather", "two_level", "sharded"),
    }
    return next((name for name, there in obstacles.items() if there), None)
