"""Outer steps of local training, which average separately trained models in few bytes (DiLoCo, SparseLoCo)."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lgreco._errors import of_layer
from lgreco._lgreco import LgrecoError
from lgreco.torch.checkpoint import Checkpointed
from lgreco.torch.collectives import ExchangeError, copy_from_rank_0, gather
from lgreco.torch.fragment import Fragment
from lgreco.torch.groups import agree, own_group, release_with
from lgreco.torch.layers import Layer, is_flat, local, no_module, plain_name, reshard, without_values
from lgreco.torch.loads import Loads, checksum
from lgreco.torch.options import Options
from lgreco.torch.outer_options import (
    averaged, divided, idle_or_wrong, options_of, shared, unknown_or_scaled, wrong_numbers, wrong_settings, wrong_steps,
)  # fmt: skip
from lgreco.torch.rank_parts import key_of
from lgreco.torch.reports import Reports

if TYPE_CHECKING:
    from typing_extensions import Unpack


class OuterStep(Reports, Checkpointed[None]):
    """Averages separately trained models every few steps, by compressed pseudo-gradients.

    Each process trains with its own optimizer, which this class neither takes nor changes. The pseudo-gradient of a
    layer is the layer's value at the last outer step minus its value now. After ``every`` steps pseudo-gradients are
    compressed with error feedback and averaged. SGD with Nesterov's momentum makes an outer step with the means, and all
    processes continue from the result. Source: Douillard et al., "DiLoCo" (2023); with decaying feedback, SparseLoCo (2025).

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
        The model, whose trainable parameters, of type float32, float16 or bfloat16, are the layers. Rank 0's parameters
        are copied to all ranks. Frozen parameters and buffers, such as BatchNorm's running means, are neither copied nor
        averaged, and may differ between processes. If all ranks later load the same weights by ``load_state_dict``,
        training continues from these weights. After any other change of the weights call ``restart``. A parameter that is
        unfrozen later is an error on all ranks at the next outer step. A parameter that is frozen later still changes by
        the outer steps' momentum and by its residual, until another OuterStep is made. For a sharded model, each process
        averages its own shards, and ``process_group`` has the ranks that hold the same shards.
    every
        Number of inner steps between two outer steps, at least 1. SparseLoCo uses 30.
    learning_rate, momentum
        Learning rate and momentum of the outer step. DiLoCo's momentum is 0.9. With TopK and momentum 0.9, the loss in
        ``examples/outer.py`` fell and then rose, because momentum repeatedly applied values that residuals had delayed. MuLoCo's
        momentum of 0.6 did not have this effect.
    feedback_decay
        Factor, above 0 and at most 1, by which residuals are multiplied after every outer step. 1 is classic error feedback, and
        SparseLoCo uses 0.95.
    fragments
        Number of parts of about equal size into which the layers are divided: at most ``every``, and at most the number of layers.
        The parts are averaged in turn, at equal intervals, so that each exchange sends less (Streaming DiLoCo).
    delay
        Number of inner steps, fewer than ``every``, that are taken while pseudo-gradients are exchanged, so that the exchange
        may take as long as these steps. The means are then ``delay`` steps old, and each process adds its own changes since
        then. Without a delay, processes wait for the exchange. If an exchange has several collectives, each collective needs
        an inner step.
    joined
        Whether all layers of a fragment, including vectors, are compressed as one layer. In ``settings``, ``metrics()`` and
        errors, the joined layers are named ``joined.0`` and so on. TopK then keeps the largest values of all layers, and
        sends only one header.
    forget_moved
        Whether a process clears its residual of each element whose mean is not 0, because some process has sent that element.
        This option is for TopK, under which the means of most elements are 0, and allows a higher learning rate. With
        ``joined=True``, ``learning_rate=4``, ``momentum=0``, ``feedback_decay=0.8`` and ``widths=[1]``, half of
        SparseLoCo's bytes gave a lower loss (docs/src/experiments/outer-steps.md).
    process_group, **options
        As in ``LGreCoState``, but steps are outer steps. The defaults are ``start_iter=2``, ``period=100`` and ``window=1``.
        Outer steps before the first plan use the uniform setting. A ``budget`` in bits is for all fragments together. Each
        fragment gets a share in proportion to its elements.

    Raises LgrecoError for invalid options and parameters.
    """

    every: int
    delay: int

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
        failure: Exception | None = no_module(model) or averaged(model) or without_values(model.named_parameters())
        if failure is None:
            reshard(model)
        named = [(plain_name(name), p) for name, p in model.named_parameters() if p.requires_grad] if failure is None else []
        told: Options = {"start_iter": 2, "period": 100, "window": 1, **options}
        if failure is None and not named:
            failure = LgrecoError("the model has no trainable parameters")
        if failure is None:
            numbers = {"learning_rate": learning_rate, "momentum": momentum, "feedback_decay": feedback_decay}
            failure = unknown_or_scaled(options) or wrong_steps(every, fragments, delay, len(named)) or wrong_numbers(numbers)
        if failure is None:
            failure = idle_or_wrong(told, forget_moved)
            every, fragments, delay = int(every), int(fragments), int(delay)
            learning_rate, momentum, feedback_decay = float(learning_rate), float(momentum), float(feedback_decay)
        if failure is None:
            failure = shared(model, named, process_group)
        # A shard that is empty on this rank is empty on all ranks of the group, so it needs no averaging.
        named = [(name, p) for name, p in named if local(p).numel() > 0]
        if failure is None and not named:
            failure = LgrecoError("this rank holds no element of any trainable parameter of the model")
        if failure is None:
            layers = [f"joined.{index}" for index in range(fragments)] if joined else [name for name, _ in named]
            failure = wrong_settings(options.get("settings"), layers, joined)
        together = {"every": every, "learning_rate": learning_rate, "momentum": momentum, "feedback_decay": feedback_decay}
        together.update(fragments=fragments, delay=delay, joined=joined, forget_moved=forget_moved)
        described = [Layer(name, list(local(p).shape), p.dtype).described() for name, p in named]
        self._compares = own_group(process_group)
        """A group in which ranks compare the weights and states that they have loaded."""
        release_with(self, self._compares)
        agree(self._compares, together, described, failure)
        self.steps = 0
        vars(self).update(every=every, delay=delay)  # They are never assigned again.
        self._process_group = process_group
        self._model = model
        """The model, kept alive because it may be a container or a compiled model that the user has made only for this object."""
        self._names = {name: p for name, p in named}
        self._is_flat, self._told_of_plans = is_flat(model), options.get("on_plan")
        self._has_begun = False
        """Whether a step was taken with this object."""
        self._resumes = False
        """Whether a state was loaded since the last step. Weights that the user loads before the next step belong to
        this state."""
        before = checksum(self._own())
        for _, p in named:
            copy_from_rank_0(local(p.detach()), process_group)
        self._replaced = None if before == checksum(self._own()) else before
        """The checksum of this rank's parameters before rank 0's parameters replaced them; None if both were the same."""
        self._fragments = [
            Fragment(
                part,
                f"joined.{index}" if joined else None,
                learning_rate,
                momentum,
                feedback_decay,
                forget_moved,
                delay > 0,
                self._compares,
                index,
                process_group,
                options_of(told, f"joined.{index}" if joined else None, part, named),
            )
            for index, part in enumerate(divided(named, fragments))
        ]
        self._loads = Loads(model, self._was_loaded)

    def step(self) -> bool:
        """Must be called after every inner step on all ranks. Returns whether this call has made an outer step.

        Raises LgrecoError on all ranks when a parameter was not finite on one rank, and ExchangeError when the network has
        failed. With a ``delay``, these errors are raised when the means are due. After an error, parameters and residuals
        are unchanged, and the outer step has ended. An ExchangeError ends all outer steps that are under way.

        If ranks have loaded different states or weights, the next outer step raises LgrecoError on all ranks. If the
        loaded states are of different steps, the first call of ``step`` already raises the error.
        """
        if not self._has_begun:
            self._expect_same_steps()
            self._has_begun = True
        self.steps += 1
        self._resumes = False
        count, received = len(self._fragments), []

        def turn(fragment: Fragment, index: int) -> None:
            if fragment.has_sent and self.delay == 0:
                self._receive(fragment)  # An interrupt came before the means were received.
            at = self.steps + index * self.every // count
            if at % self.every == 0:
                self._reshard()
                fragment.send(self._changed())
            if fragment.has_sent:
                if (at - self.delay) % self.every == 0:
                    received.append(index)
                    self._receive(fragment)
                else:
                    fragment.go_on()

        self._all(turn)
        return bool(received)

    def finish(self) -> None:
        """Ends the outer steps that are under way with a ``delay``. All ranks must call ``finish`` before they use the model
        or save its state.

        Raises the errors of ``step``.
        """
        self._all(lambda fragment, _: self._receive(fragment) if fragment.has_sent else None)

    def _expect_same_steps(self) -> None:
        """Raises on all ranks if they have loaded states of different steps.

        With such states, fragments would have their turns at different times, and ranks would wait for each other.
        """
        numbers = torch.full((self._compares.size(),), self.steps, dtype=torch.int64, device="cpu")
        try:
            gather(numbers, self._compares).wait()
        except RuntimeError as error:
            raise self._fragments[0]._abandoned(error) from error
        every = numbers.tolist()
        for rank, steps in enumerate(every):
            if steps != every[0]:
                what = f"rank {rank} goes on after step {steps}, and rank 0 after step {every[0]}"
                raise LgrecoError(f"{what}: load on all ranks what they saved after the same step")

    def _receive(self, fragment: Fragment) -> None:
        self._reshard()
        fragment.receive()

    def _reshard(self) -> None:
        """Frees the gathered parameters that a forward pass without a backward pass leaves. The next forward pass then gathers
        the parameters that this object has changed."""
        reshard(self._model)

    @torch.no_grad()
    def _all(self, do: Callable[[Fragment, int], None]) -> None:
        """Calls ``do`` for each fragment. A failure of the network ends all turns at once.

        Any other error is the same on all ranks, so all ranks continue with the remaining fragments. The first error is
        raised at the end.
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
        """Continues from rank 0's present parameters. All ranks must call ``restart`` between the same two steps.

        ``restart`` is needed after the weights have changed in another way than by training or ``load_state_dict``. Raises
        LgrecoError while outer steps are under way: call ``finish`` before.
        """
        for fragment in self._fragments:
            fragment.expect_none_sent()
        self._reshard()
        for fragment in self._fragments:
            for p in fragment.parameters:
                copy_from_rank_0(p.detach(), self._process_group)
            fragment.start_from(fragment.parameters)

    def _own(self) -> list[torch.Tensor]:
        """The parts of the parameters that this process holds."""
        return [local(p) for p in self._names.values()]

    def _was_loaded(self, loaded: list[torch.Tensor]) -> None:
        """Continues from weights that the user has loaded, unless they belong to a loaded state."""
        if self._resumes:
            return
        for fragment in self._fragments:
            fragment.note_loaded(loaded, are_known=not self._is_flat)

    def _changed(self) -> LgrecoError | None:
        """The error if the model's trainable parameters have changed, else None."""
        for name, p in self._model.named_parameters():
            if not p.requires_grad or local(p).numel() == 0:
                continue
            name = plain_name(name)
            if name not in self._names:
                return of_layer(name, "the parameter was not trainable when the OuterStep was made: make another OuterStep")
            if not self._is_flat and type(p) is torch.nn.Parameter and type(self._names[name]) is torch.nn.Parameter and p is not self._names[name]:
                return of_layer(name, "the model has another parameter in its place than when the OuterStep was made: make another")
        return None

    @property
    def settings(self) -> dict[str, str]:
        """Each layer's setting at its last outer step, as text."""
        return {name: setting for fragment in self._fragments for name, setting in fragment.settings.items()}

    def compression_stats(self) -> tuple[float, int, int]:
        """The compression ratio of this process so far, the bytes of all pseudo-gradients, and the bytes sent for
        them."""
        gradients, sent = (sum(f.compression_stats()[i] for f in self._fragments) for i in (1, 2))
        return (gradients / sent if sent else 1.0, int(gradients), int(sent))

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Setting, outer steps, bytes, relative squared error and norm of the residual by layer. Reads residuals.

        The norm is None for layers whose outer step is under way.
        """
        return {name: layer for fragment in self._fragments for name, layer in fragment.metrics().items()}

    def report(self) -> str:
        """The present settings in one line per fragment; see ``LGreCoState.report``."""
        return "\n".join(fragment.report() for fragment in self._fragments)

    def _plans(self) -> list[dict[str, Any]]:
        return [plan for fragment in self._fragments for plan in fragment._plans()]

    def residual(self, name: str) -> torch.Tensor:
        """A copy of a layer's residual on this rank: float32, flat; zeros if there is none. Raises LgrecoError while an
        exchange uses the residual."""
        for fragment in self._fragments:
            if name in fragment.layers:
                return fragment.residual_of(name)
        raise LgrecoError(f"no layer is called {name!r}: metrics() has the names")

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, under a key with the rank. ``weights_only=True`` can load it. Every rank saves its own state,
        together with its model and inner optimizer.

        Raises LgrecoError while outer steps are under way: call ``finish`` before.
        """
        return {key_of(self._rank()): self._part()}

    def _part(self) -> dict[str, Any]:
        fragments = [fragment._part() for fragment in self._fragments]
        return {"steps": self.steps, "fragments": fragments, "parameters": checksum(self._own()), "ranks": self._ranks()}

    def _rank(self) -> int:
        return self._fragments[0]._rank()

    def _ranks(self) -> list[int]:
        return self._fragments[0]._ranks()

    def _step(self) -> int:
        return self.steps

    def load_state_dict(self, state: Mapping[str, Any], residuals: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Continues from a state with the same number of fragments. The user loads the model and its optimizer separately, the
        model after this object was made.

        Workers may leave or join between outer steps. Then make a new ``OuterStep`` in the new group. All ranks of the group
        load a state. ``residuals`` are the states whose residuals a rank takes over. A rank that stays gives its own state
        as ``state`` and in ``residuals``. To take over the residuals of a rank that left, a rank adds that rank's state to
        ``residuals``; otherwise these residuals are lost. A rank that joins gives any rank's state and no residuals
        (``[]``). If ``residuals`` are given, parameters are set to the values from which the next outer step starts.
        Otherwise parameters stay unchanged.

        Raises ValueError if the state has other fragments or shapes. Raises LgrecoError for a damaged state, and for the
        state of another rank if ``residuals`` are not given. Also raises LgrecoError if the model was loaded before this
        object was made, and with a ``delay`` after the first step. After an error, everything is unchanged.
        """
        self._load_parts(state, residuals)

    def _load_part(self, state: Mapping[str, Any], residuals: Sequence[Mapping[str, Any]] | None = None) -> None:
        if self.delay > 0 and self._has_begun:
            raise LgrecoError(
                "this OuterStep has taken steps, and with a delay the other ranks would not find in time that this one has loaded a "
                "state: make another OuterStep on all ranks, and load the state into that one"
            )
        taken = [state] if residuals is None else residuals
        for other in (state, *taken):
            if not isinstance(other, Mapping) or not {"steps", "fragments"} <= other.keys():
                raise LgrecoError("the state has no 'steps' and 'fragments': load a state that OuterStep.state_dict() has returned")
            if len(other["fragments"]) != len(self._fragments):
                raise ValueError(f"the state has {len(other['fragments'])} fragments, expected {len(self._fragments)}")
        was_early = self._replaced is not None and state.get("parameters") == self._replaced  # older states have no checksum
        if was_early and residuals is None and self._replaced != checksum(self._own()):
            raise LgrecoError(
                "the model was loaded before the OuterStep was made, which has replaced its parameters by rank 0's: first make the "
                "OuterStep, then load the model, then this state"
            )
        steps = int(state["steps"])
        before = [None if fragment._is_lost() else fragment.as_it_is() for fragment in self._fragments]
        changed = 0
        try:
            for index, fragment in enumerate(self._fragments):
                of_others = None if residuals is None else [other["fragments"][index] for other in taken]
                # An error leaves the fragment unchanged, but an interrupt may come in the middle of the load.
                changed = index + 1
                try:
                    fragment._load_part(state["fragments"][index], of_others)
                except Exception:
                    changed = index
                    raise
        except BaseException:
            self._take_load_back(before[:changed])
            raise
        finally:
            before.clear()  # The error's traceback would keep these copies alive.
        self.steps, self._resumes = steps, True
        for fragment in self._fragments:
            fragment.end_load(self.steps)
        if residuals is not None:
            self._reshard()
            for fragment in self._fragments:
                fragment.start_anew()

    def _take_load_back(self, before: list[dict[str, Any] | None]) -> None:
        """Restores the fragments' states from before a failed load. Skips fragments that an earlier interrupt made unusable."""
        for fragment, kept in zip(self._fragments, before):
            if kept is not None:
                fragment._load_part(kept)
