"""Measures the seconds of exchanges in a GPU's memory, for plans with ``objective="seconds"``.

The host only enqueues GPU work, so the host's clock cannot time computations or collectives. Events in the stream time
them instead. One event precedes the first bucket of a step, and one event follows the step's last means. Two events
enclose each computation between collectives. The events are read when the next step begins. No step waits for them,
because the next step waits for the result of the previous step anyway. The controller treats these seconds like seconds
on the host's clock, and reports them to the other ranks.

Two more measurements take place once per plan, in the last step before the plan. First, all ranks send a probe in the group
that carries the buckets. After that step, the rank that plans runs two trials of each method that the plan may choose. A trial
compresses one bucket of the step's gradients, and decompresses the payload once per rank. A trial has all the work of a
step except collectives, so its time includes a step's launch overhead. Times of a single layer, or a model of the cost
per element, would miss this overhead. Trials run in the stream of the steps. In another stream, trials would run beside
the next forward pass, and their times would include its work. Trials delay one rank by a few exchanges per plan.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist

from lgreco._lgreco import Controller, Device, DeviceBucket, LgrecoError, Request
from lgreco.torch.collectives import gather
from lgreco.torch.cuda import Cuda

_LOG = logging.getLogger("lgreco")
_MOST = 2**23
"""Largest number of elements of the bucket for trials, unless every bucket is larger. DDP's buckets have fewer."""

_PROBED = 2**20
"""Largest number of bytes of a probe, unless one word per rank is more."""

_Span = tuple[torch.cuda.Event, torch.cuda.Event]


class _Kept(NamedTuple):
    """A bucket for trials."""

    layers: list[int]
    """The layers that may be compressed."""
    kinds: list[list[str]]
    """For each kind of method, a setting per layer."""
    values: torch.Tensor
    """The gradients of all layers, one after the other."""

    def worth(self) -> tuple[bool, int]:
        """Orders buckets for trials: the largest bucket within the limit is best, then the smallest bucket beyond the limit."""
        elements = self.values.numel()
        return (True, elements) if elements <= _MOST else (False, -elements)


class _Trial(NamedTuple):
    layers: list[int]
    settings: list[str]
    runs: list[list[_Span]]


class Times:
    """The events of the last step, of a probe and of trials, which are read when the next step begins."""

    def __init__(self, cuda: Cuda, controller: Controller, group: dist.ProcessGroup) -> None:
        self._cuda = cuda
        self._controller = controller
        self._group = group
        # The probe's memory is allocated in advance: if one rank lacked memory during a probe, the other ranks would wait.
        self._memory = cuda.allocate(max(_PROBED, 16 * group.size()))
        self.forget()

    def forget(self) -> None:
        """Discards all events."""
        self.forget_step()
        self._probed: list[torch.cuda.Event] = []
        self._kept: _Kept | None = None
        self._trials: list[_Trial] = []

    def forget_step(self) -> None:
        """Discards the events of a step that failed."""
        self._begun: torch.cuda.Event | None = None
        self._ended: torch.cuda.Event | None = None
        self._computing: list[_Span] = []
        self._sent = 0.0

    def begin(self) -> None:
        """Records an event at the beginning of a step, before its first bucket. Probes the link if a probe is due."""
        with self._cuda.stream():
            length = self._controller.probe_bytes()
            if length is not None:
                self._probe(length)
            self._begun = self._cuda.mark()

    def _probe(self, length: int) -> None:
        """Times all-gathers: two of one word per rank, and then twice a gather of all bytes followed by a gather of one word.

        A gather of one word waits for the slowest rank. So after the first gather, all ranks begin the second gather together.
        """
        nothing = 8 * self._group.size()
        self._probed = [self._cuda.mark()]
        for probe in [nothing, nothing] + 2 * [length, nothing]:
            gather(self._memory[:probe], self._group).wait()
            self._probed.append(self._cuda.mark())

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Times the work that is enqueued within this context, as compression or decompression."""
        start = self._cuda.mark()
        yield
        self._computing.append((start, self._cuda.mark()))

    def sends(self, request: Request) -> None:
        """Counts the bytes of a collective. An all-reduce counts as a reduce-scatter followed by an all-gather."""
        if request.kind == "all_to_all":
            self._sent += request.received_length
            return
        ways = 2 if request.kind.startswith("all_reduce") else 1
        self._sent += ways * request.length * (1 - 1 / self._group.size())

    def end(self) -> None:
        """Records an event after the means of a bucket. The last such event marks the end of the step."""
        self._ended = self._cuda.mark()

    def keep(self, layers: list[int], gradients: list[torch.Tensor]) -> None:
        """On the rank that plans, in the step before a plan: keeps a copy of a bucket's gradients for trials, if there is memory."""
        if not self._probed:
            return
        kinds = self._controller.trials(layers)
        places = [place for place in range(len(layers)) if any(kind[place] != "dense" for kind in kinds)]
        if not places:
            return
        try:
            values = torch.cat([gradients[place].flatten() for place in places])
        except (MemoryError, RuntimeError) as error:
            _LOG.warning("no trials on a bucket, as the GPU has no memory for a copy of it: %s", error)
            return
        kept = _Kept([layers[place] for place in places], [[kind[place] for place in places] for kind in kinds], values)
        if self._kept is None or kept.worth() > self._kept.worth():
            self._kept = kept

    def try_out(self, device: Device) -> None:
        """After a step: runs the trials of methods on the kept bucket. Waits while kernels are loaded."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        for settings in kept.kinds:
            try:
                with self._cuda.stream():
                    memory = self._cuda.allocate(device.bytes(self._controller, kept.layers, settings))
                    bucket = device.bucket(self._controller, kept.layers, memory.data_ptr(), settings)
                    # The first run warms up caches.
                    runs = [self._alone(device, bucket, memory, kept.values.clone()) for _ in range(2)]
                self._trials.append(_Trial(kept.layers, settings, runs))
            except (LgrecoError, MemoryError, RuntimeError) as error:
                _LOG.warning("the cost of %s on the GPU is estimated, as the trial failed: %s", settings[0], error)

    def _alone(self, device: Device, bucket: DeviceBucket, memory: torch.Tensor, values: torch.Tensor) -> list[_Span]:
        """Performs an exchange without a network: the messages of all ranks are copies of this rank's message."""
        spans = []
        start = self._cuda.mark()
        device.submit(bucket, values.data_ptr())
        while True:
            request = device.next(bucket)
            spans.append((start, self._cuda.mark()))
            if request is None:
                return spans
            if request.kind == "all_gather":
                messages = self._cuda.part(memory, request.address, request.length, torch.uint8).view(self._group.size(), -1)
                messages.copy_(messages[self._group.rank()].clone())
            if request.kind == "all_to_all":
                # The received messages are those of the other ranks, followed by this rank's message to itself.
                world = self._group.size()
                length = request.received_length // (world - 1) * world
                messages = self._cuda.part(memory, request.received_address, length, torch.uint8).view(world, -1)
                messages[:-1].copy_(messages[-1])
            if request.kind.startswith(("all_reduce", "reduce_scatter")):
                self._tell_for_all(memory, request)
            start = self._cuda.mark()

    def _tell_for_all(self, memory: torch.Tensor, request: Request) -> None:
        """Copies this rank's status record, which reports no error, over the records of all ranks. The records follow the
        values that the collective sums."""
        is_half = request.kind.endswith("bf16")
        values = self._cuda.part(memory, request.address, request.length, torch.bfloat16 if is_half else torch.float32)
        world, rank = self._group.size(), self._group.rank()
        own = torch.split(values, request.lens)[rank] if request.lens else values
        slips = own[len(own) - world * (3 if is_half else 1) :].view(world, -1)
        slips.copy_(slips[rank].clone().expand_as(slips))

    def tell(self) -> None:
        """Gives all seconds to the controller, once the result of the last step is known."""
        if self._begun is not None and self._ended is not None:
            seconds = self._cuda.seconds(self._begun, self._ended)
            self._controller.record_exchange(self._sent, seconds, self._sum(self._computing))
        if self._probed:
            took = [self._cuda.seconds(*span) for span in zip(self._probed, self._probed[1:])]
            nothing, both = min(took[:2]), min(map(sum, zip(took[2::2], took[3::2])))
            self._controller.record_probe(nothing, max(both - nothing, 0.0))
        for trial in self._trials:
            self._controller.record_trial(trial.layers, trial.settings, min(self._sum(run) for run in trial.runs))
        self.forget()

    def _sum(self, spans: list[_Span]) -> float:
        return sum(self._cuda.seconds(*span) for span in spans)
