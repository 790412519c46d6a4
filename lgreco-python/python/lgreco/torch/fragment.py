"""A fragment of the model in outer steps: layers that are sent, averaged and updated together."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from lgreco._errors import of_layer
from lgreco._lgreco import LgrecoError
from lgreco.torch.checkpoint import Loaded
from lgreco.torch.collectives import ExchangeError
from lgreco.torch.layers import Layer, local
from lgreco.torch.loads import CHANGED, TORN, WHOLE_AGAIN, LoadedWeights
from lgreco.torch.options import Options
from lgreco.torch.step import as_own
from lgreco.torch.step_state import UnderWay
from lgreco.torch.training import Training

Named = list[tuple[str, torch.nn.Parameter]]
"""Parameters with their names."""


@dataclass
class Ready:
    """No outer step is under way."""


@dataclass
class Sent:
    """An outer step is under way."""

    parameters: list[torch.Tensor] | None
    """The parameters' values when pseudo-gradients were sent. None without a delay: no inner step is taken until the means
    have arrived."""
    buffer: torch.Tensor
    """The pseudo-gradients, later the means."""


class Fragment(Training):
    """Layers that are averaged together.

    ``send`` begins an outer step and leads from ``Ready`` to ``Sent``. ``receive`` ends the outer step and leads back to
    ``Ready``.
    """

    _advice = None  # Pseudo-gradients are not scaled.

    def __init__(
        self,
        named: Named,
        joined: str | None,
        learning_rate: float,
        momentum: float,
        decay: float,
        forget_moved: bool,
        delayed: bool,
        compares: dist.ProcessGroup,
        index: int,
        group: dist.ProcessGroup | None,
        options: Options,
    ) -> None:
        """``index`` is the fragment's number in the model. In the group ``compares``, ranks compare the weights that they have
        loaded."""
        # Layers of different types are exchanged in the smallest type that can represent all their values.
        self._dtype = functools.reduce(torch.promote_types, [p.dtype for _, p in named])
        self.layers = [name for name, _ in named]
        layers = [Layer(name, list(local(p).shape), self._dtype) for name, p in named]
        super().__init__(group, [Layer(joined, [elements(named), 1], self._dtype)] if joined else layers, **options)
        self._controller.compress_warmup()  # Outer steps are few, and an uncompressed one is as large as a hundred others.
        self._whole = [p for _, p in named]
        self._learning_rate, self._momentum, self._decay = learning_rate, momentum, decay
        self._joined, self._forget_moved, self._delayed = joined is not None, forget_moved, delayed
        self._starts = [p.detach().clone() for p in self.parameters]
        self._velocities = [torch.zeros_like(start) for start in self._starts]
        self._loaded = LoadedWeights(compares, index)
        self._outer: Ready | Sent = Ready()
        self._torn: str | None = None
        """Error text if the last outer step has updated only some parameters, because it was interrupted or has failed."""
        self._has_planned = False
        """Whether ``on_plan`` must still be called for a plan."""

    @property
    def has_sent(self) -> bool:
        """Whether an outer step is under way."""
        return isinstance(self._outer, Sent)

    def _take_back_left_over(self, layers: list[int] | None = None) -> None:
        if isinstance(self._state, UnderWay) and not self.has_sent:
            self._take_back(LgrecoError("the outer step has been interrupted: it is taken back"))

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parts of the fragment's parameters that this process holds."""
        return [local(p) for p in self._whole]

    def expect_none_sent(self) -> None:
        if self.has_sent:
            raise LgrecoError("an outer step is under way: call finish() first")

    # Weights that something other than training changes

    def note_loaded(self, loaded: list[torch.Tensor], are_known: bool) -> None:
        """Continues from the parameters in ``loaded``, if their values are known."""
        if not are_known:
            self._loaded.note_unknown()
            return
        for at, p in enumerate(self._whole):
            if any(p is other for other in loaded):
                self._starts[at].copy_(self.parameters[at].detach())
                if isinstance(self._outer, Sent) and self._outer.parameters is not None:
                    self._outer.parameters[at].copy_(self._starts[at])
                self._loaded.note(at, self._starts[at])

    def start_from(self, parameters: list[torch.Tensor]) -> None:
        """Continues from these parameters, which are the same on all ranks."""
        self._loaded.forget()
        self._torn = None
        for start, velocity, p in zip(self._starts, self._velocities, parameters):
            start.copy_(p.detach())
            velocity.zero_()

    @torch.no_grad()
    def start_anew(self) -> None:
        """Sets parameters to the values from which the next outer step starts."""
        for p, start in zip(self.parameters, self._starts):
            p.copy_(start)

    # The outer step

    def send(self, changed: LgrecoError | None) -> None:
        """Sends pseudo-gradients. ``changed`` is an error if this rank's model has changed since the OuterStep was made, else
        None."""
        if self.has_sent:
            return  # This step is repeated after an error in another fragment's turn.
        sent, buffer, unmade = self._pseudo_gradients()
        if self._torn is not None:
            self._loaded.send(LgrecoError(self._torn), TORN)
        elif changed is not None:
            self._loaded.send(changed, CHANGED)
        else:
            self._loaded.send(unmade)
        if not self._delayed:
            # Before the exchange, ranks compare the states that they have loaded. Otherwise a rank that alone has loaded a
            # state would wait forever for an agreement on the step.
            self._expect_alike()
        exchanged = self._exchanged(buffer) if buffer.numel() > 0 else []
        self._begin(list(range(len(self.names))), buffer, exchanged, False, failure=unmade)
        self._outer = Sent(sent, buffer)

    def _pseudo_gradients(self) -> tuple[list[torch.Tensor] | None, torch.Tensor, LgrecoError | None]:
        """Returns the parameters' values if there is a delay, the pseudo-gradients, and the error if this rank cannot compute
        pseudo-gradients. The caller must report this error to the other ranks, which wait for this rank."""
        buffer = self._starts[0].new_empty(0)
        try:
            sent = [p.detach().clone() for p in self.parameters] if self._delayed else None
            buffer = torch.empty(sum(start.numel() for start in self._starts), dtype=self._dtype, device=self._starts[0].device)
            for name, part, start, p in zip(self.layers, self._parts(buffer), self._starts, self.parameters):
                _expect_as_made(name, p, start)
                torch.sub(start, p, out=part.view_as(p))
            return sent, buffer, None
        except Exception as error:
            told = error if isinstance(error, LgrecoError) else as_own("the outer step has no pseudo-gradients", error)
            return None, buffer.zero_(), told

    def go_on(self) -> None:
        """Starts the next collective if the previous collective is done. Never waits. ``receive`` ends the last
        collective."""
        for exchange in self._under_way():
            try:
                while exchange.is_done() and not exchange.is_last() and self._go_on(exchange):
                    pass
            except BaseException:  # also an interrupt: the outer step is undone
                self._outer = Ready()
                raise

    def give_up(self, error: ExchangeError) -> None:
        """Abandons the exchange under way, because the network has failed."""
        if self.has_sent:
            self._outer = Ready()
            self._abandoned(error)

    def receive(self) -> None:
        """Waits for the means, and updates the parameters."""
        sent = self._outer
        assert isinstance(sent, Sent)
        try:
            for exchange in self._under_way():
                while exchange.is_flying() and not exchange.is_last() and self._go_on(exchange):
                    pass
            # Ending the step changes residuals, so all checks that may refuse the outer step come before.
            if self._delayed:
                self._expect_alike()
            self._finish_step()
            self._end_step()
            self._make(sent)
        finally:
            self._outer = Ready()

    def _expect_alike(self) -> None:
        """Raises on all ranks if they have loaded different weights, or if some rank's model has changed."""
        try:
            failure = self._loaded.compare()
        except RuntimeError as error:
            raise self._abandoned(error) from error
        if failure is not None:
            self._take_back(failure)
            raise failure

    def _make(self, sent: Sent) -> None:
        """Updates parameters by SGD with Nesterov's momentum. With a delay, adds this rank's changes since the sending.

        The other ranks make their updates at the same time. If this rank's update fails, the next outer step reports this
        failure to all ranks.
        """
        self._torn = f"an interrupt came while an outer step updated the parameters: {WHOLE_AGAIN}"
        name = None
        try:
            self._update_residuals(sent)
            means = [mean.view_as(start) for mean, start in zip(self._parts(sent.buffer), self._starts)]
            for name, *layer in zip(self.layers, self.parameters, sent.parameters or self.parameters, self._starts, self._velocities, means):
                _expect_as_made(name, layer[0], layer[2])
                for p, before, start, velocity, mean in zip(*map(_pieces, layer)):
                    learned_since = p - before if self._delayed else None
                    velocity.mul_(self._momentum).add_(mean)
                    start.sub_(mean + self._momentum * velocity, alpha=self._learning_rate)
                    p.copy_(start if learned_since is None else start + learned_since)
        except Exception as error:
            is_ours = isinstance(error, LgrecoError)
            cause = str(error).removeprefix(f"{name}: ") if is_ours else f"{type(error).__name__}: {error}"
            what = f"rank {self._group.rank()} has made the outer step only in part: {cause}; {WHOLE_AGAIN}"
            told = LgrecoError(what) if name is None else of_layer(name, what)
            self._torn = str(told)
            raise told from error
        self._torn = None

    def _update_residuals(self, sent: Sent) -> None:
        if self._forget_moved:
            on_host = [mean.to("cpu", torch.float32) for mean in self._exchanged(sent.buffer)]
            self._controller.forget_moved([mean.data_ptr() for mean in on_host])
        if self._decay != 1.0:
            self._controller.rescale_residuals(self._decay)

    def _expect_whole(self) -> None:
        if self._torn is not None:
            raise LgrecoError(self._torn)

    def _parts(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Splits the buffer by parameter."""
        return list(torch.split(buffer, [start.numel() for start in self._starts]))

    def _exchanged(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Splits the buffer by layer of the controller."""
        return [buffer] if self._joined else self._parts(buffer)

    # Reports and saved states

    def _tell_of_plan(self) -> None:
        """Defers ``on_plan`` until the parameters are updated, because ``on_plan`` may save the state."""
        self._has_planned = True

    def take_planned(self) -> bool:
        """Whether ``on_plan`` must be called now, because an outer step with a new plan has ended. True once per
        plan."""
        planned = self._has_planned and not self.has_sent
        self._has_planned = self._has_planned and not planned
        return planned

    def residual_of(self, layer: str) -> torch.Tensor:
        if not self._joined:
            return self.residual(layer)
        parts = self._parts(self.residual(self.names[0]))
        return parts[self.layers.index(layer)]

    def _part(self, *, window: bool = True) -> dict[str, Any]:
        self._expect_whole()
        return self.as_it_is(window=window)

    def as_it_is(self, *, window: bool = True) -> dict[str, Any]:
        """The state, even if an outer step has updated only some parameters."""
        if self.has_sent:
            raise LgrecoError("an outer step is under way: call finish() before you save or load states")
        outer = {"starts": self._starts, "velocities": self._velocities}
        return {**super()._part(window=window), **{name: [x.clone() for x in values] for name, values in outer.items()}}

    def _load_part(self, state: Mapping[str, Any], residuals: Any = None) -> Loaded:
        if not isinstance(state, Mapping) or not {"starts", "velocities"} <= state.keys():
            raise LgrecoError("a fragment of the state has no 'starts' and 'velocities': load a state that OuterStep.state_dict() has returned")
        places = self._starts + self._velocities
        saved = [*state["starts"], *state["velocities"]]
        if [values.shape for values in saved] != [place.shape for place in places]:
            raise ValueError("the state's fragments have other layers")
        loaded = super()._load_part(state, residuals)
        for place, values in zip(places, saved):
            place.copy_(values)
        return loaded

    def end_load(self, steps: int) -> None:
        """Ends the load of a state from after ``steps`` inner steps, once all fragments have loaded their parts."""
        self._loaded.note_state(steps, self._starts, self._velocities)
        self._torn = None


def _expect_as_made(name: str, p: torch.Tensor, start: torch.Tensor) -> None:
    """Raises if a parameter's shape or type has changed since the OuterStep was made."""
    for what, now, was in (("shape", list(p.shape), list(start.shape)), ("type", p.dtype, start.dtype)):
        if now != was:
            raise of_layer(name, f"the parameter has {what} {now}, and had {was} when the OuterStep was made: make another")


def _pieces(values: torch.Tensor) -> Sequence[torch.Tensor]:
    """Splits values along the longest dimension into parts of about a million elements, so that temporary results take
    little memory."""
    if values.dim() == 0:
        return [values]
    longest = max(range(values.dim()), key=lambda at: values.shape[at])
    return torch.split(values, max(1, (1 << 20) * values.shape[longest] // values.numel()), longest)


def elements(named: Named) -> int:
    """Number of elements that this process holds of all parameters."""
    return sum(local(p).numel() for _, p in named)
