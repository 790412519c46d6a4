"""The exchange of one bucket over nodes of several GPUs, in the GPUs' memory.

The ranks of a node sum their gradients, and each rank gets the means of its shards over the node. Each rank exchanges
these means with its peers as a separate bucket (``device_exchange.py``). An all-gather inside the node completes the
means. ``node_bucket.py`` has the memory of the messages inside the node.
"""

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from lgreco._errors import of_layer
from lgreco._lgreco import Bucket, Controller, LgrecoError
from lgreco.torch.device_exchange import NOT_FINITE, OUT_OF_MEMORY, DeviceExchange, Failing, InDeviceMemory, ResidentBucket
from lgreco.torch.exchange import HostExchange
from lgreco.torch.node_bucket import NodeBucket

if TYPE_CHECKING:
    from lgreco.torch.node_buckets import NodeBuckets


class ShardsOnHost(HostExchange):
    """The exchange of this rank's shards with its peers in the host's memory, for settings without kernels."""

    def open(self, controller: Controller, layers: list[int]) -> None:
        if self.bucket is not None:
            controller.open_shards(layers, self.bucket)


class NodeOutcome(Failing):
    """The outcome of a bucket's last step, which the host reads when the next step begins."""

    def __init__(self, names: list[str], wholes: list[int]) -> None:
        super().__init__()
        self._names = names
        self._wholes = wholes
        """Number of elements of each layer."""
        self.told: Callable[[], torch.Tensor] | None = None
        """Returns the outcome of the messages inside the node; None once the host has read the outcome."""
        self.resident: ResidentBucket | None = None
        """The bucket of the shards; None if the host has exchanged the shards."""
        self.found: LgrecoError | None = None
        """This rank's error in an exchange of shards on the host."""

    def forget(self) -> None:
        self.told = self.resident = self.found = self.refusal = None

    def of_own(self, index: int) -> LgrecoError:
        """The error for this rank's infinite or NaN gradient at position ``index`` of the buffer."""
        layer = 0
        while layer + 1 < len(self._wholes) and index >= self._wholes[layer]:
            index, layer = index - self._wholes[layer], layer + 1
        error = of_layer(self._names[layer], f"element {index} is infinite or NaN: gradients must be finite")
        error.code = NOT_FINITE
        return error


class _Stage(enum.Enum):
    """The collective under way."""

    OPEN = enum.auto()
    REDUCING = enum.auto()
    WITH_PEERS = enum.auto()
    HELD = enum.auto()
    """The exchange with the peers has ended. This bucket's all-gather starts when all buckets have come this far, because
    the number of collectives with peers may differ between ranks of a node."""
    GATHERING = enum.auto()
    DONE = enum.auto()


class NodeExchange(InDeviceMemory):
    """The exchange of one bucket over nodes, in the memory of GPUs."""

    def __init__(
        self, buckets: "NodeBuckets", layers: list[int], memory: NodeBucket, outcome: NodeOutcome, buffer: torch.Tensor
    ) -> None:
        super().__init__(buckets.cuda, buffer)
        self._buckets = buckets
        self._layers = layers
        self._memory = memory
        self._outcome = outcome
        self._hold_zeros = False
        self._stage = _Stage.OPEN
        self._shards: DeviceExchange | ShardsOnHost | None = None
        self._has_failed_on_host = False

    @property
    def is_lost(self) -> bool:
        return self._shards is not None and self._shards.is_lost

    @property
    def lends(self) -> bool:
        return self._shards is not None and self._shards.lends

    def open(self, controller: Controller, layers: list[int]) -> None:
        """Does nothing: if the host exchanges the shards, ``_begin_shards`` borrows them later."""

    def close(self, controller: Controller) -> None:
        if self._shards is not None:
            self._shards.close(controller)

    def submit(self, gradients: list[torch.Tensor], hold_zeros: bool, failure: LgrecoError | None) -> None:
        assert self._buffer is not None
        self._hold_zeros = hold_zeros
        with self._cuda.stream():
            if failure is None:
                try:
                    self._memory.fill(self._buffer, gradients, hold_zeros)
                    return
                except (MemoryError, RuntimeError) as error:
                    failure = LgrecoError(f"gradients cannot be summed on the GPU: {error}")
                    failure.code = OUT_OF_MEMORY
            self._outcome.refusal = failure
            self._memory.fail()

    def go_on(self) -> bool:
        with self._cuda.stream():
            if self._work is not None:
                self._work.wait()
                self._work = None
            if self._stage is _Stage.OPEN:
                self._work = self._memory.reduce(self._buckets.node)
                self._stage = _Stage.REDUCING
                return True
            if self._stage is _Stage.REDUCING:
                self._begin_shards()
                self._stage = _Stage.WITH_PEERS
            if self._stage is _Stage.WITH_PEERS:
                if not self._shards_go_on():
                    self._stage = _Stage.HELD
                return True
            if self._stage is _Stage.HELD:
                self._work = self._memory.gather(self._has_failed(), self._buckets.node)
                self._stage = _Stage.GATHERING
                return True
            if self._stage is _Stage.GATHERING:
                assert self._buffer is not None
                self._outcome.told = self._memory.deliver(self._buffer)
                self._stage = _Stage.DONE
                if self._buckets.times is not None:
                    self._buckets.times.end()
            return False

    def _begin_shards(self) -> None:
        """Begins the exchange with the peers."""
        row = self._memory.average()
        shards = list(torch.split(row, self._memory.own))
        try:
            on_device = self._buckets.resident(self._layers, row, shards)
            if on_device is not None:
                on_device.is_zero = self._memory.is_zero
                self._outcome.resident = on_device.bucket
                self._shards = on_device
            else:
                self._shards = ShardsOnHost(Bucket(), row, self._buckets.peers)
                self._shards.open(self._buckets.controller, self._layers)
        except LgrecoError as error:
            # The step is abandoned, because no message reports this error to the other ranks.
            raise RuntimeError(str(error)) from error
        self._shards.submit(shards, self._hold_zeros, None)

    def _shards_go_on(self) -> bool:
        """Whether another collective with the peers is under way."""
        assert self._shards is not None
        try:
            if self._shards.go_on():
                return True
            self._shards.deliver()
        except LgrecoError as error:
            # An exchange of shards on the host has failed on all peers. The last message informs the other ranks.
            self._has_failed_on_host = True
            self._memory.clear()
            if error.peer is None:
                self._outcome.found = error
        return False

    def _has_failed(self) -> torch.Tensor:
        """A tensor of one number: 1 if the exchange with the peers has failed, else 0."""
        if self._outcome.resident is not None:
            return self._buckets.found_inf(self._outcome.resident)
        return torch.full((1,), float(self._has_failed_on_host), dtype=torch.float32, device=self._cuda.device)

    def is_flying(self) -> bool:
        return self._stage not in (_Stage.OPEN, _Stage.DONE)

    def is_held(self) -> bool:
        return self._stage is _Stage.HELD

    def is_done(self) -> bool:
        """Whether a collective is under way; see ``DeviceExchange.is_done``."""
        return self.is_flying()

    def give_up(self, error: Exception) -> None:
        super().give_up(error)
        if self._shards is not None:
            self._shards.give_up(error)
        self._stage = _Stage.DONE
