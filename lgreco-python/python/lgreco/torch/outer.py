"""Outer steps of local training: what processes have learned apart, averaged compressed (DiLoCo, SparseLoCo)."""

import functools
import hashlib
import math
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lgreco._errors import of_layer
from lgreco._lgreco import LgrecoError
from lgreco.torch.agreement import agree
from lgreco.torch.checkpoint import Checkpointed, Loaded
from lgreco.torch.collectives import ExchangeError, expect_group, gather, own_group, release
from lgreco.torch.layers import Layer, no_module
from lgreco.torch.loads import Loads
from lgreco.torch.names import plain_name, uncompiled
from lgreco.torch.options import Options
from lgreco.torch.reports import Reports
from lgreco.torch.shards import is_flat, local, sharded_over
from lgreco.torch.training import Training

if TYPE_CHECKING:
    from typing_extensions import Unpack


class OuterStep(Reports, Checkpointed[None]):
    """Averages models that are trained apart, every so many steps, over compressed pseudo-gradients.

    Each process trains by its own optimizer, which this neither takes nor touches. After ``every`` steps the pseudo-gradient of
    each layer, its value at the last outer step minus its value now, is compressed with error feedback and averaged, and SGD with
    Nesterov's momentum makes an outer step of the means, from where all processes go on: Douillard et al., "DiLoCo" (2023); with
    feedback that decays, SparseLoCo (2025).

    >>> model = torch.nn.Linear(64, 64)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> outer = OuterStep(model, every=2, method="topk")
    >>> for _ in range(4):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(1, 64)).square().mean().backward()
    ...     optimizer.step()
    ...     outer.step()  # whether this was an outer one
    False
    True
    False
    True

    Parameters
    ----------
    model
        Its trainable parameters, float32, float16 or bfloat16, are the layers. Those of rank 0 are copied to all ranks. Parameters
        that are frozen and buffers, BatchNorm's running means say, are neither copied nor averaged: each process has its own.
        Ranks that load the same weights by ``load_state_dict`` afterwards go on from these; after another change of the
        weights call ``restart``. A parameter that is unfrozen later is an error on all ranks at the next outer step. Of a sharded
        model each process averages its own shards, and ``process_group`` has the ranks that hold the same ones.
    every
        Inner steps between outer ones, at least 1; 30 in SparseLoCo.
    learning_rate, momentum
        Of the outer step. DiLoCo's momentum is 0.9; under TopK, whose residuals send late what momentum would have repeated, that
        made ``examples/outer.py`` lose what it had learned, where 0.6, MuLoCo's, did not.
    feedback_decay
        What is remembered is multiplied by it after every outer step: 1 is classic error feedback, 0.95 SparseLoCo's.
    fragments
        With more than 1, the layers are divided into so many parts of about equal size that are averaged in turn, equally spaced,
        so that less is sent at a time (Streaming DiLoCo).
    delay
        Inner steps that are taken while what has been sent is on its way, below ``every``: the mean is then of the models as they were
        when it was sent, and what a process has learned since is added to where all go on from. The network so has the time of
        ``delay`` steps; without a delay processes wait for it. What is sent in several collectives needs a step for each.
    joined
        Whether the layers of a fragment are compressed as one, vectors among them, named ``joined.0`` and so on by the fragment in
        ``settings``, ``metrics()`` and errors. TopK then keeps the largest values of all layers, wherever they are this time, and
        one header serves all.
    forget_moved
        Whether a process forgets what it has not sent of an element that the mean moves: others have moved it. It bears a higher
        learning rate. For TopK, whose mean leaves most elements alone. With both, ``learning_rate=4``, ``momentum=0``,
        ``feedback_decay=0.8`` and ``widths=[1]`` half of SparseLoCo's bytes gave a lower loss (BENCHMARKS.md, "Outer steps to the end").
    process_group, **options
        As in ``LGreCoState``, where a step is an outer one; ``start_iter`` is 2 unless told otherwise, ``period`` 100, ``window`` 1.
        Steps before the first plan have the uniform setting. A ``budget`` in bits is for all layers, and each fragment has a share
        by its elements.

    Raises LgrecoError for options and parameters that do not fit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        every: int = 30,
        learning_rate: float = 0.7,
        momentum: float = 0.6,
        feedback_decay: float = 0.95,
        fragments: int = 1,
        delay: int = 0,
        joined: bool = False,
        forget_moved: bool = False,
        process_group: dist.ProcessGroup | None = None,
        **options: "Unpack[Options]",
    ) -> None:
        failure: Exception | None = no_module(model) or _averaged(model)
        named = [(plain_name(name), p) for name, p in model.named_parameters() if p.requires_grad] if failure is None else []
        told: Options = {"start_iter": 2, "period": 100, "window": 1, **options}
        if failure is not None:
            pass  # All ranks are told.
        elif not named:
            failure = LgrecoError("the model has no trainable parameters")
        elif not isinstance(every, int) or every < 1:
            failure = LgrecoError(f"every is {every!r}, expected a whole number of at least 1")
        elif not isinstance(fragments, int) or not 1 <= fragments <= min(every, len(named)):
            failure = LgrecoError(f"fragments is {fragments!r}, expected 1 to {min(every, len(named))}: steps and layers there are")
        elif not isinstance(delay, int) or not 0 <= delay < every:
            failure = LgrecoError(f"delay is {delay!r}, expected 0 to {every - 1}: the next outer step begins after {every}")
        ranges: list[tuple[str, float, Callable[[float], bool], str]] = [
            ("learning_rate", learning_rate, lambda x: 0.0 < x < math.inf, "a number above 0"),
            ("momentum", momentum, lambda x: 0.0 <= x < 1.0, "a number from 0 to below 1"),
            ("feedback_decay", feedback_decay, lambda x: 0.0 < x <= 1.0, "a number above 0 and at most 1"),
        ]
        for what, value, holds, expected in ranges:
            if not isinstance(value, (int, float)) or not holds(value):
                failure = LgrecoError(f"{what} is {value!r}, expected {expected}")
        if "grad_scaler" in options:
            failure = LgrecoError("pseudo-gradients are not scaled: leave grad_scaler out")
        if failure is None:
            failure = _shared(model, named, process_group)
        # Empty shards have nothing to be averaged, on all ranks of the group.
        named = [(name, p) for name, p in named if local(p).numel() > 0]
        if failure is None and not named:
            failure = LgrecoError("this rank holds no element of any trainable parameter of the model")
        settings: Any = options.get("settings") or {}
        if not isinstance(settings, Mapping):
            failure = LgrecoError(f"settings is {settings!r}, expected a setting per name of a layer")
        if failure is None:
            layers = [f"joined.{index}" for index in range(fragments)] if joined else [name for name, _ in named]
            unknown = [name for name in settings if name not in layers]
            if unknown:
                what = "fragment whose layers are joined" if joined else "trainable parameter of the model"
                failure = LgrecoError(f"settings for {unknown[0]!r}, which is no {what}")
        together = {"every": every, "learning_rate": learning_rate, "momentum": momentum, "feedback_decay": feedback_decay}
        together.update(fragments=fragments, delay=delay, joined=joined, forget_moved=forget_moved)
        described = [Layer(name, list(local(p).shape), p.dtype).described() for name, p in named]
        group = own_group(process_group)
        try:
            agree(group, together, described, failure)
        finally:
            release(group, os.getpid())
        self.every, self.delay, self.steps = every, delay, 0
        self._model, self._process_group = weakref.ref(model), process_group
        self._names = {name: p for name, p in named}
        self._is_flat, self._told_of_plans = is_flat(model), options.get("on_plan")
        self._resumes = False
        """Whether a state has been loaded since the last step, which the model's weights belong to."""
        for _, p in named:
            dist.broadcast(local(p.detach()), group=process_group, group_src=0)
        self._fragments = [
            _Fragment(
                part,
                f"joined.{index}" if joined else None,
                learning_rate,
                momentum,
                feedback_decay,
                forget_moved,
                process_group,
                _options_of(told, f"joined.{index}" if joined else None, part, named),
            )
            for index, part in enumerate(_divided(named, fragments))
        ]
        self._loads = Loads(model, self._was_loaded)

    def step(self) -> bool:
        """To be called after every inner step, on all ranks; whether it has made an outer one.

        Raises LgrecoError on all ranks when a parameter was not finite on one, ExchangeError when the network has failed: with a
        ``delay`` when the means would come. Parameters and residuals are then as they were, and the turn is over; after an
        ExchangeError so are those that are on their way.
        """
        self.steps += 1
        self._resumes = False
        count, received = len(self._fragments), []

        def turn(fragment: _Fragment, index: int) -> None:
            at = self.steps + index * self.every // count
            if at % self.every == 0:
                fragment.send(self._changed())
            if fragment.has_sent:
                if (at - self.delay) % self.every == 0:
                    received.append(index)
                    fragment.receive()
                else:
                    fragment.go_on()

        self._all(turn)
        return bool(received)

    def finish(self) -> None:
        """Ends the outer steps that a ``delay`` has left on their way, on all ranks: before the model is used, or its state saved.

        Raises as ``step``.
        """
        self._all(lambda fragment, _: fragment.receive() if fragment.has_sent else None)

    @torch.no_grad()
    def _all(self, do: Callable[["_Fragment", int], None]) -> None:
        """Has each fragment ``do`` its turn; the first error is raised at the end, and a failed network ends all turns at once.

        Other errors are the same on all ranks, which so go through the same turns.
        """
        failed: LgrecoError | None = None
        for index, fragment in enumerate(self._fragments):
            try:
                do(fragment, index)
            except ExchangeError as error:
                for other in self._fragments:
                    other.give_up(error)
                raise
            except LgrecoError as error:
                failed = failed or error
        planned = [fragment.take_planned() for fragment in self._fragments]
        try:
            if any(planned) and self._told_of_plans is not None:
                with torch.enable_grad():
                    self._told_of_plans(self)
        finally:
            if failed is not None:
                raise failed

    @torch.no_grad()
    def restart(self) -> None:
        """Has all ranks go on from rank 0's parameters as they are, on all ranks, between two steps: after weights were changed
        otherwise than by training and ``load_state_dict``.

        Raises LgrecoError while outer steps are on their way: ``finish`` them first.
        """
        for fragment in self._fragments:
            fragment.expect_none_sent()
        for fragment in self._fragments:
            for p in fragment.parameters:
                dist.broadcast(p.detach(), group=self._process_group, group_src=0)
            fragment.start_from(fragment.parameters)

    def _was_loaded(self, loaded: list[torch.Tensor]) -> None:
        """Goes on from weights that the user has loaded, unless they belong to a state that has been loaded, too."""
        if self._resumes:
            return
        for fragment in self._fragments:
            fragment.note_loaded(loaded, None if self._is_flat else local)

    def _changed(self) -> LgrecoError | None:
        """What to raise where the model trains other parameters than it did."""
        model = self._model()
        for name, p in [] if model is None else model.named_parameters():
            if not p.requires_grad or local(p).numel() == 0:
                continue
            name = plain_name(name)
            if name not in self._names:
                return of_layer(name, "the parameter was not trainable when the OuterStep was made: make another, and load the state")
            if not self._is_flat and type(p) is torch.nn.Parameter and type(self._names[name]) is torch.nn.Parameter and p is not self._names[name]:
                return of_layer(name, "the model has another parameter in its place than when the OuterStep was made: make another")
        return None

    @property
    def settings(self) -> dict[str, str]:
        """Each layer's setting at its last outer step, as text."""
        return {name: setting for fragment in self._fragments for name, setting in fragment.settings.items()}

    def compression_stats(self) -> tuple[float, int, int]:
        """How many times fewer bytes this process has sent than pseudo-gradients have, and both numbers of bytes."""
        gradients, sent = (sum(f.compression_stats()[i] for f in self._fragments) for i in (1, 2))
        return (gradients / sent if sent else 1.0, int(gradients), int(sent))

    def metrics(self) -> dict[str, dict[str, Any]]:
        """What is known of each layer: setting, outer steps, bytes, relative error and norm of the residual. Reads residuals.

        Norms of what is on its way are None.
        """
        return {name: layer for fragment in self._fragments for name, layer in fragment.metrics().items()}

    def _plans(self) -> list[dict[str, Any]]:
        return [plan for fragment in self._fragments for plan in fragment._plans()]

    def residual(self, name: str) -> torch.Tensor:
        """A copy of a layer's residual on this rank: float32, flat; zeros without one. Raises LgrecoError while it is on its way."""
        for fragment in self._fragments:
            if name in fragment.layers:
                return fragment.residual_of(name)
        raise LgrecoError(f"no layer is called {name!r}")

    def state_dict(self) -> dict[str, Any]:
        """This rank's state; every rank saves its own, beside its model and inner optimizer. For ``weights_only=True``.

        Raises LgrecoError while outer steps are on their way: ``finish`` them first.
        """
        return {"steps": self.steps, "fragments": [fragment.state_dict() for fragment in self._fragments]}

    def _ranks(self) -> list[int]:
        return self._fragments[0]._ranks()

    def _step(self) -> int:
        return self.steps

    def load_state_dict(self, state: Mapping[str, Any], residuals: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Continues from a state, with as many fragments; the model and its optimizer are loaded apart.

        Workers may leave or join between outer steps: a new ``OuterStep`` is made in the group of those that are there, and all
        load, with the states whose ``residuals`` they take over. One that stays gives its own as both, and hands on what one that
        left has remembered by giving that state among ``residuals``, too, or drops it; one that joins gives any rank's state and
        no residuals (``[]``). With ``residuals`` parameters become what the next outer step starts from; without, they stay.

        Raises ValueError for other fragments or shapes, LgrecoError when a state is damaged or none; nothing has changed then.
        """
        taken = [state] if residuals is None else residuals
        for other in (state, *taken):
            if not isinstance(other, Mapping) or not {"steps", "fragments"} <= other.keys():
                raise LgrecoError("what is to be loaded is not what state_dict() has returned: it has no 'steps' and 'fragments'")
            if len(other["fragments"]) != len(self._fragments):
                raise ValueError(f"the state has {len(other['fragments'])} fragments, expected {len(self._fragments)}")
        before = [None if fragment._is_lost() else fragment.as_it_is() for fragment in self._fragments]
        for index, fragment in enumerate(self._fragments):
            try:
                fragment.load_state_dict(state["fragments"][index], [other["fragments"][index] for other in taken])
            except ValueError:
                for changed, kept in zip(self._fragments[:index], before):
                    if kept is not None:
                        changed.load_state_dict(kept)
                raise
        self.steps, self._resumes = state["steps"], True
        for fragment in self._fragments:
            fragment.is_torn = False
        if residuals is not None:
            for fragment in self._fragments:
                fragment.start_anew()


class _Fragment(Training):
    """Layers that are averaged together."""

    _advice = None  # Pseudo-gradients are not scaled.

    def __init__(
        self,
        named: list[tuple[str, torch.nn.Parameter]],
        joined: str | None,
        learning_rate: float,
        momentum: float,
        decay: float,
        forget_moved: bool,
        group: dist.ProcessGroup | None,
        options: Options,
    ) -> None:
        # Layers of different types are exchanged as the type that holds all of them.
        self._dtype = functools.reduce(torch.promote_types, [p.dtype for _, p in named])
        self.layers = [name for name, _ in named]
        layers = [Layer(name, list(local(p).shape), self._dtype) for name, p in named]
        super().__init__(group, [Layer(joined, [_elements(named), 1], self._dtype)] if joined else layers, **options)
        self._controller.compress_warmup()  # There are few outer steps, and an uncompressed one costs as much as a hundred.
        self._whole = [p for _, p in named]
        self._learning_rate, self._momentum, self._decay = learning_rate, momentum, decay
        self._joined, self._forget_moved = joined is not None, forget_moved
        self._starts = [p.detach().clone() for p in self.parameters]
        self._velocities = [torch.zeros_like(start) for start in self._starts]
        self._loaded: dict[int, str] = {}
        """Of parameters that were loaded since the last outer step, what others must have loaded, too."""
        self._lacks_loaded = False
        """Whether what was loaded cannot be told."""
        self._told_loaded: dict[int, str] = {}
        """What others have been told of, in an outer step that is on its way or has failed."""
        self._told_lacks = False
        self._checked: tuple[Any, torch.Tensor, LgrecoError | None] | None = None
        """How ranks tell each other what they have loaded, and what is wrong here."""
        self._sent: tuple[list[torch.Tensor], torch.Tensor] | None = None
        """Parameters, and what becomes the mean of their pseudo-gradients."""
        self._has_planned = False
        self.is_torn = False
        """Whether some parameters, starts and velocities have made an outer step that others have not."""

    @property
    def has_sent(self) -> bool:
        """Whether an outer step is on its way."""
        return self._sent is not None

    def _take_back_left_over(self, is_over: bool = False) -> None:
        if self._flights is not None and not self.has_sent:
            self._take_back(LgrecoError("the outer step has been interrupted: it is taken back"))

    @property
    def parameters(self) -> list[torch.Tensor]:
        """What this process holds of them."""
        return [local(p) for p in self._whole]

    def expect_none_sent(self) -> None:
        if self.has_sent:
            raise LgrecoError("an outer step is on its way: finish() it first")

    def note_loaded(self, loaded: list[torch.Tensor], place: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        """Goes on from those of its parameters that are ``loaded``; without a ``place`` that cannot be told."""
        indices = [at for at, p in enumerate(self._whole) if any(p is other for other in loaded)]
        for at in indices if place is not None else []:
            self._starts[at].copy_(self.parameters[at].detach())
            if self._sent is not None:
                self._sent[0][at].copy_(self._starts[at])
            values = self._starts[at].cpu().reshape(-1).view(torch.uint8)
            self._loaded[at] = hashlib.sha256(values.numpy().tobytes()).hexdigest()
        self._lacks_loaded = self._lacks_loaded or place is None

    def start_from(self, parameters: list[torch.Tensor]) -> None:
        """Goes on from them, which are the same on all ranks."""
        self._forget_loaded()
        for start, velocity, p in zip(self._starts, self._velocities, parameters):
            start.copy_(p.detach())
            velocity.zero_()

    def _forget_loaded(self) -> None:
        self._loaded.clear()
        self._lacks_loaded = False
        self._forget_told()

    def _forget_told(self) -> None:
        self._told_loaded, self._told_lacks = {}, False

    def _tell(self, changed: LgrecoError | None) -> None:
        """Begins to tell other ranks what this one has loaded, and whether its model has changed.

        What is loaded from now on the next outer step tells, and what one has told that has failed.
        """
        self._told_loaded, self._loaded = self._told_loaded | self._loaded, {}
        self._told_lacks, self._lacks_loaded = self._told_lacks or self._lacks_loaded, False
        if changed is None and self._told_lacks:
            changed = LgrecoError("weights were loaded into a FullyShardedDataParallel after the OuterStep was made: call restart() after that")
        loaded = int(hashlib.sha256(repr(sorted(self._told_loaded.items())).encode()).hexdigest()[:15], 16)
        told = torch.zeros(2 * self._group.size(), dtype=torch.int64)
        at = 2 * self._group.rank()
        told[at : at + 2] = torch.tensor([loaded, int(changed is not None)])
        self._checked = gather(told, self._group), told, changed

    def _expect_alike(self) -> None:
        """Raises on all ranks when they have not loaded the same weights, or the model of one has changed."""
        assert self._checked is not None
        (work, told, changed), self._checked = self._checked, None
        try:
            work.wait()
        except RuntimeError as error:
            raise self._abandoned(error) from error
        all_loaded, all_changed = told.view(-1, 2).T.tolist()
        failed = changed
        for rank in range(self._group.size()):
            if failed is None and all_changed[rank]:
                failed = LgrecoError(f"rank {rank} cannot make the outer step: its model has changed since the OuterStep was made")
            if failed is None and all_loaded[rank] != all_loaded[0]:
                what = f"rank {rank} and rank 0 have not loaded the same weights since the last outer step"
                failed = LgrecoError(f"{what}: load the same on all ranks, or call restart() on all")
        if failed is not None:
            self._take_back(failed)
            raise failed
        self._forget_told()

    def send(self, changed: LgrecoError | None) -> None:
        if self.has_sent:
            return  # by a step that is taken again, because another fragment's turn has failed
        self._expect_whole()
        self._tell(changed)
        sent = [p.detach().clone() for p in self.parameters]
        buffer = torch.cat([(start - p).reshape(-1).to(self._dtype) for start, p in zip(self._starts, sent)])
        exchanged = self._exchanged(buffer)
        self._begin(list(range(len(exchanged))), buffer, exchanged, False)
        self._sent = sent, buffer

    def go_on(self) -> None:
        """Starts the next collective if the one before is done; waits for none. Residuals change with the means only."""
        for flight in self._flights or []:
            try:
                while flight.is_done() and not flight.is_last() and self._go_on(flight):
                    pass
            except BaseException:  # an interrupt, too: what has been sent is taken back
                self._sent = None
                raise

    def give_up(self, error: ExchangeError) -> None:
        """Takes back what is on its way, as the network has failed."""
        if self.has_sent:
            self._sent = None
            self._abandoned(error)

    def receive(self) -> None:
        """Waits for the means, and makes the outer step."""
        assert self._sent is not None
        try:
            for flight in self._flights or []:
                while flight.is_flying() and not flight.is_last() and self._go_on(flight):
                    pass
            # Before the means change residuals: an outer step that cannot be made leaves no trace.
            self._expect_alike()
            self._finish_step()
            self._end_step()
            self._make(*self._sent)
        finally:
            self._sent = None

    def _tell_of_plan(self) -> None:
        """Who is told of plans is so when the outer step is made, and may save it."""
        self._has_planned = True

    def take_planned(self) -> bool:
        """Whether there is a plan, and its outer step has been made, that nobody has been told of; once."""
        planned = self._has_planned and not self.has_sent
        self._has_planned = self._has_planned and not planned
        return planned

    def _make(self, sent: list[torch.Tensor], buffer: torch.Tensor) -> None:
        means, exchanged = self._parts(buffer), self._exchanged(buffer)
        if self._forget_moved:
            on_host = [mean.to("cpu", torch.float32) for mean in exchanged]
            self._controller.forget_moved([mean.data_ptr() for mean in on_host])
        if self._decay != 1.0:
            self._controller.rescale_residuals(self._decay)
        self.is_torn = True
        for p, before, start, velocity, mean in zip(self.parameters, sent, self._starts, self._velocities, means):
            learned_since = p - before
            mean = mean.view_as(p)
            velocity.mul_(self._momentum).add_(mean)
            start.sub_(mean + self._momentum * velocity, alpha=self._learning_rate)
            p.copy_(start + learned_since)
        self.is_torn = False

    def _expect_whole(self) -> None:
        if self.is_torn:
            raise LgrecoError("an outer step was interrupted while it was made: load a saved state")

    def _parts(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.split(buffer, [start.numel() for start in self._starts]))

    def _exchanged(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        return [buffer] if self._joined else self._parts(buffer)

    def residual_of(self, layer: str) -> torch.Tensor:
        if not self._joined:
            return self.residual(layer)
        parts = self._parts(self.residual(self.names[0]))
        return parts[self.layers.index(layer)]

    @torch.no_grad()
    def start_anew(self) -> None:
        """Parameters are again what the next outer step starts from."""
        for p, start in zip(self.parameters, self._starts):
            p.copy_(start)

    def state_dict(self, *, window: bool = True) -> dict[str, Any]:
        self._expect_whole()
        return self.as_it_is(window=window)

    def as_it_is(self, *, window: bool = True) -> dict[str, Any]:
        """Its state, whole or not."""
        if self.has_sent:
            raise LgrecoError("an outer step is on its way: finish() it before states are saved or loaded")
        outer = {"starts": self._starts, "velocities": self._velocities}
        return {**super().state_dict(window=window), **{name: [x.clone() for x in values] for name, values in outer.items()}}

    def load_state_dict(self, state: Mapping[str, Any], residuals: Any = None) -> Loaded:
        places = self._starts + self._velocities
        saved = [*state["starts"], *state["velocities"]]
        if [values.shape for values in saved] != [place.shape for place in places]:
            raise ValueError("the state's fragments have other layers")
        loaded = super().load_state_dict(state, residuals)
        self._forget_loaded()
        self._checked = None
        for place, values in zip(places, saved):
            place.copy_(values)
        return loaded


def _averaged(model: torch.nn.Module) -> LgrecoError | None:
    """What to raise for a model whose processes do not train apart."""
    if not isinstance(uncompiled(model), torch.nn.parallel.DistributedDataParallel):
        return None
    way_out = "give OuterStep the module within, which processes train apart, or workers of several processes each"
    return LgrecoError(f"model is a DistributedDataParallel, which averages gradients in every step: {way_out}")


def _shared(
    model: torch.nn.Module, named: list[tuple[str, torch.nn.Parameter]], group: dist.ProcessGroup | None
) -> LgrecoError | None:
    """What to raise for a group whose ranks hold different shards of the model."""
    expect_group(group)
    if not dist.is_initialized():
        return None
    holders = sharded_over(model, [p for _, p in named])
    averaging = dist.get_process_group_ranks(group)
    if len(set(holders) & set(averaging)) <= 1:
        return None
    way_out = "give OuterStep as process_group a group of ranks that hold the same shards, one of each node"
    return LgrecoError(f"the model is sharded over ranks {holders}, and process_group, which averages it, has ranks {averaging}: {way_out}")


def _options_of(
    told: Options,
    joined: str | None,
    part: list[tuple[str, torch.nn.Parameter]],
    named: list[tuple[str, torch.nn.Parameter]],
) -> Options:
    """What the controller of a part of the layers is told."""
    options: Options = {**told}
    if isinstance(budget := told.get("budget"), int):
        options["budget"] = budget * _elements(part) // max(1, _elements(named))
    if settings := told.get("settings"):
        layers = [joined] if joined else [name for name, _ in part]
        options["settings"] = {name: settings[name] for name in layers if name in settings}
    return options


def _elements(named: list[tuple[str, torch.nn.Parameter]]) -> int:
    return sum(local(p).numel() for _, p in named)


def _divided(named: list[tuple[str, torch.nn.Parameter]], parts: int) -> list[list[tuple[str, torch.nn.Parameter]]]:
    """Consecutive layers, about as many elements in each part, none empty."""
    total = _elements(named)
    divided: list[list[tuple[str, torch.nn.Parameter]]] = [[] for _ in range(parts)]
    at = before = 0
    for index, layer in enumerate(named):
        left = len(named) - index
        while at < parts - 1 and divided[at] and (before >= total * (at + 1) / parts or left <= parts - 1 - at):
            at += 1
        divided[at].append(layer)
        before += local(layer[1]).numel()
    return divided
