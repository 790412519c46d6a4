"""What exchanges in a GPU's memory take, for plans by seconds.

Work for a GPU is enqueued, so that the host's clock sees neither how long it takes nor how long collectives do. Events in its stream do:
one before the first bucket of a step, one behind its last means, and two around whatever a bucket has to compute between collectives.
They are read when the next step begins, which waits for the outcome of the one before anyway; so nothing of a step waits for them. The
controller makes of these seconds what it makes of the host's, and tells the other ranks.

Once per plan, in the last step before it, there is more to find out. All ranks send a probe, in the group that carries the buckets. The rank
that plans tries methods out that no step may have used yet: after the step it compresses one bucket of that step's own gradients by each,
twice, and decompresses what comes of it as often as there are ranks. That is what a step does but for the collectives, so that launches
weigh what they weigh there, which a layer alone, or the host's model of an element's cost, would not tell. It is done in the stream of the
steps, since beside the next forward pass it would take as long as both, and delays one rank for a few exchanges per plan.
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
"""Elements of the bucket that methods are tried out on, at most, if there is one so small: those of DDP's have fewer."""

_PROBED = 2**20
"""Bytes of a probe, at most, where a word of each rank is not more."""

_Span = tuple[torch.cuda.Event, torch.cuda.Event]


class _Kept(NamedTuple):
    """A bucket to try methods out on."""

    layers: list[int]
    """Those that may be compressed."""
    kinds: list[list[str]]
    """A setting per layer, of each kind of method."""
    values: torch.Tensor
    """Their gradients, one after the other."""

    def worth(self) -> tuple[bool, int]:
        """The larger the better, but not above the most."""
        elements = self.values.numel()
        return (True, elements) if elements <= _MOST else (False, -elements)


class _Trial(NamedTuple):
    layers: list[int]
    settings: list[str]
    runs: list[list[_Span]]


class Times:
    """The events of the last step, of a probe and of trials, until the next step begins."""

    def __init__(self, cuda: Cuda, controller: Controller, group: dist.ProcessGroup) -> None:
        self._cuda = cuda
        self._controller = controller
        self._group = group
        # Made before others wait for it: a rank that found no memory later would leave them waiting.
        self._memory = cuda.allocate(max(_PROBED, 16 * group.size()))
        self.forget()

    def forget(self) -> None:
        """Has nothing to tell."""
        self.forget_step()
        self._probed: list[torch.cuda.Event] = []
        self._kept: _Kept | None = None
        self._trials: list[_Trial] = []

    def forget_step(self) -> None:
        """The step has failed: how long it took says nothing."""
        self._begun: torch.cuda.Event | None = None
        self._ended: torch.cuda.Event | None = None
        self._computing: list[_Span] = []
        self._sent = 0.0

    def begin(self) -> None:
        """Before the first bucket of a step."""
        with self._cuda.stream():
            length = self._controller.probe_bytes()
            if length is not None:
                self._probe(length)
            self._begun = self._cuda.mark()

    def _probe(self, length: int) -> None:
        """Twice a word of each rank, which is as good as nothing, and by turns all and nothing again, which waits for the slowest rank.

        The first absorbs that ranks do not begin together.
        """
        nothing = 8 * self._group.size()
        self._probed = [self._cuda.mark()]
        for probe in [nothing, nothing] + 2 * [length, nothing]:
            gather(self._memory[:probe], self._group).wait()
            self._probed.append(self._cuda.mark())

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What is enqueued meanwhile compresses or decompresses."""
        start = self._cuda.mark()
        yield
        self._computing.append((start, self._cuda.mark()))

    def sends(self, request: Request) -> None:
        """A collective is started; an all-reduce sends what a reduce-scatter and an all-gather do."""
        if request.kind == "all_to_all":
            self._sent += request.received_length
            return
        ways = 2 if request.kind.startswith("all_reduce") else 1
        self._sent += ways * request.length * (1 - 1 / self._group.size())

    def end(self) -> None:
        """The means of a bucket are enqueued; those of the last one end the step."""
        self._ended = self._cuda.mark()

    def keep(self, layers: list[int], gradients: list[torch.Tensor]) -> None:
        """On the rank that plans: keeps a copy of a bucket's gradients, in the step before a plan, if there is memory for it."""
        if not self._probed:
            return
        kinds = self._controller.trials(layers)
        places = [place for place in range(len(layers)) if any(kind[place] != "dense" for kind in kinds)]
        if not places:
            return
        try:
            values = torch.cat([gradients[place].flatten() for place in places])
        except (MemoryError, RuntimeError) as error:
            _LOG.warning("a bucket is left out where methods are tried out, as the GPU cannot keep it: %s", error)
            return
        kept = _Kept([layers[place] for place in places], [[kind[place] for place in places] for kind in kinds], values)
        if self._kept is None or kept.worth() > self._kept.worth():
            self._kept = kept

    def try_out(self, device: Device) -> None:
        """After a step: tries methods out on what was kept in it. Waits while kernels are loaded."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        for settings in kept.kinds:
            try:
                with self._cuda.stream():
                    memory = self._cuda.allocate(device.bytes(self._controller, kept.layers, settings))
                    bucket = device.bucket(self._controller, kept.layers, memory.data_ptr(), settings)
                    # The first finds what is not there yet.
                    runs = [self._alone(device, bucket, memory, kept.values.clone()) for _ in range(2)]
                self._trials.append(_Trial(kept.layers, settings, runs))
            except (LgrecoError, MemoryError, RuntimeError) as error:
                _LOG.warning("what %s costs on the GPU is guessed, as it cannot be tried out: %s", settings[0], error)

    def _alone(self, device: Device, bucket: DeviceBucket, memory: torch.Tensor, values: torch.Tensor) -> list[_Span]:
        """An exchange in which all ranks' messages are this one's."""
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
                # Its message to itself is behind those of the others.
                world = self._group.size()
                length = request.received_length // (world - 1) * world
                messages = self._cuda.part(memory, request.received_address, length, torch.uint8).view(world, -1)
                messages[:-1].copy_(messages[-1])
            if request.kind.startswith(("all_reduce", "reduce_scatter")):
                self._tell_for_all(memory, request)
            start = self._cuda.mark()

    def _tell_for_all(self, memory: torch.Tensor, request: Request) -> None:
        """Has all ranks' slips, behind this one's part of what is summed, say what its own does: that it fares well."""
        is_half = request.kind.endswith("bf16")
        values = self._cuda.part(memory, request.address, request.length, torch.bfloat16 if is_half else torch.float32)
        world, rank = self._group.size(), self._group.rank()
        own = torch.split(values, request.lens)[rank] if request.lens else values
        slips = own[len(own) - world * (3 if is_half else 1) :].view(world, -1)
        slips.copy_(slips[rank].clone().expand_as(slips))

    def tell(self) -> None:
        """When the outcome of the last step is known, before the next one: tells the controller."""
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
