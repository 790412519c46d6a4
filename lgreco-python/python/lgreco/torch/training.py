"""The base class of all states: options, reports about layers and plans, and saved states. ``step.py`` has the
steps."""

import logging
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lgreco._errors import of_layer
from lgreco._lgreco import Controller, LgrecoError, payload_len
from lgreco.torch.checkpoint import Checkpointed, Loaded, to_bytes, to_tensor
from lgreco.torch.cuda import Cuda
from lgreco.torch.device import Buckets
from lgreco.torch.effects import without_effect
from lgreco.torch.groups import agree, own_group, release_with
from lgreco.torch.layers import Layer, plain_name
from lgreco.torch.node_buckets import NodeBuckets
from lgreco.torch.nodes import Nodes
from lgreco.torch.options import Options, Scaler, deciding, enabled, expect, in_order, name_of
from lgreco.torch.planning import default_lead
from lgreco.torch.rank_parts import key_of
from lgreco.torch.reports import Reports
from lgreco.torch.scale import Scale
from lgreco.torch.step import Steps
from lgreco.torch.step_state import Between, UnderWay

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OF_RESIDUALS = (torch.float32, torch.bfloat16, torch.int8)
_OF_SUMS = (torch.float32, torch.bfloat16)
_LOG = logging.getLogger("lgreco")
_SCALED: "weakref.WeakSet[Training]" = weakref.WeakSet()
"""The states that have a GradScaler."""


class Training(Steps, Reports, Checkpointed[Loaded]):
    """Settings, residuals and plans of one process."""

    _bucket_bytes: int = 25 << 20
    """Bytes of each bucket. The default is DDP's bucket size."""
    _at_once: int = sys.maxsize
    """Largest number of buckets that are exchanged at the same time."""

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        layers: Sequence[Layer],
        cuda: Cuda | None = None,
        besides: Mapping[str, Any] = MappingProxyType({}),
        refused: LgrecoError | None = None,
        routed: Callable[[dist.ProcessGroup], tuple[Nodes | None, str]] | None = None,
        /,
        **options: "Unpack[Options]",
    ) -> None:
        """Raises on all ranks if ranks differ in options or in ``besides``. ``refused`` is an error of this rank's model.
        ``routed`` takes lgreco's group, and returns the nodes and the route. The nodes are None unless gradients are
        averaged in two levels."""
        if options.get("lead") is None:
            options.pop("lead", None)
            if (lead := default_lead(layers, cuda, options)) > 0:
                options["lead"] = lead
        told: dict[str, Any] = dict(options)
        reduce_dtype: torch.dtype | None = told.pop("reduce_dtype", None)
        if reduce_dtype is None:
            halves = all(layer.dtype == torch.bfloat16 for layer in layers)
            reduce_dtype = torch.bfloat16 if halves else torch.float32
        grad_scaler: Scaler | None = enabled(told.pop("grad_scaler", None))
        settings: Mapping[str, str] | None = told.pop("settings", None)
        on_plan: Callable[[Any], None] | None = told.pop("on_plan", None)
        optimizer: torch.optim.Optimizer | None = told.pop("optimizer", None)
        is_timed = options.get("objective") == "seconds"
        self.names = [layer.name for layer in layers]
        own = own_group(group)
        release_with(self, own)
        self._members = dist.get_process_group_ranks(own)
        nodes = None
        if routed is not None:
            nodes, told["route"] = routed(own)
        if nodes is not None:
            nodes.release_with(self)
        scale = Scale(grad_scaler)
        # Ranks must agree on all options except metrics_every, which each rank may choose for itself.
        together = {**told, **besides, "settings": in_order(settings), "reduce_dtype": reduce_dtype, "route": options.get("route")}
        together.update(grad_scaler=scale.is_scaled, metrics_every=None, gradients="on a GPU" if cuda else "on the host")
        together["nodes"] = None if nodes is None else nodes.ranks
        self._decides = deciding(together)
        failure: Exception | None = None
        try:
            if refused is not None:
                raise refused
            if on_plan is not None:
                expect(callable(on_plan), "on_plan", on_plan, "a function of the state")
            if grad_scaler is not None:
                expect(hasattr(grad_scaler, "get_scale") and not isinstance(grad_scaler, type), "grad_scaler", grad_scaler, "a torch.amp.GradScaler")
            if optimizer is not None:
                expect(hasattr(optimizer, "param_groups"), "optimizer", optimizer, "a torch.optim.Optimizer")
            # ramp_up is checked before the controller is made, because the controller's error would not name this option.
            if (idle := without_effect({name: options.get(name) for name in ("ramp_up", "policy", "settings")})) is not None:
                raise idle
            if settings is not None:
                told["settings"] = self._settings_of_all(settings)
            controller = Controller(
                [(layer.name, layer.shape, layer.dtype_name(), layer.ends) for layer in layers],
                own.rank(),
                own.size(),
                scale.is_scaled,
                None if nodes is None else nodes.place,
                residual_dtype=name_of("residual_dtype", told.pop("residual_dtype", torch.float32), _OF_RESIDUALS),
                reduce_dtype=name_of("reduce_dtype", reduce_dtype, _OF_SUMS),
                **told,
            )
            if (idle := without_effect(options)) is not None:
                raise idle
            if scale.is_scaled:
                controller.note_scale(scale.now())
        except Exception as error:
            failure = error
        agree(own, together, [layer.described() for layer in layers], failure)
        if settings is not None and own.rank() == 0:
            _warn_of_larger(layers, settings)
        every: int = options.get("metrics_every") or 0
        device: Buckets | None = None
        if cuda is not None and nodes is not None:
            names = [layer.name for layer in layers]
            device = NodeBuckets(cuda, controller, nodes, own, names, reduce_dtype, scale.is_scaled, is_timed, every)
        elif cuda is not None:
            device = Buckets(cuda, controller, own_group(group, cuda.backend), own, scale.is_scaled, is_timed, every)
        leads = bool(options.get("lead"))
        super().__init__(
            own, controller, scale, device, nodes, leads=leads, is_timed=is_timed, optimizer=optimizer, on_plan=on_plan
        )
        if grad_scaler is not None:
            if own.rank() == 0 and any(other._scale.is_of(grad_scaler) for other in _SCALED):
                what = "another state has this GradScaler, which does not tell whose step it skips: such a step is undone in both"
                _LOG.warning("%s; unless the other one no longer trains, give each state a GradScaler of its own", what)
            _SCALED.add(self)

    def _settings_of_all(self, settings: Mapping[str, str]) -> list[str]:
        expect(isinstance(settings, Mapping), "settings", settings, "a setting per name of a layer")
        for name, setting in settings.items():
            if name not in self.names:
                inner = plain_name(str(name)).removeprefix("module.")
                instead = f"; without its wrapper, it is called {inner!r}: use this name" if inner in self.names else ""
                raise LgrecoError(f"settings for {name!r}, which is no trainable parameter of the model{instead}")
            if not isinstance(setting, str):
                raise of_layer(name, f"the setting is {setting!r}, expected text such as 'topk 786'")
        return [settings.get(name, "dense") for name in self.names]

    def _note_scales(self, module: torch.nn.Module) -> None:
        """Copies the loss scale to the host before each of the module's forward passes, if gradients stay on a GPU."""
        if self._device is not None and self._scale.is_scaled:
            cuda, scale = self._device.cuda, self._scale
            module.register_forward_pre_hook(lambda *_: scale.note(cuda))

    def _note_units(self, units: Sequence[list[int]], layers: Sequence[Layer]) -> None:
        """Records that each unit is a bucket, and that one bucket is exchanged at a time."""
        self._bucket_bytes, self._at_once = max(sum(layers[layer].bytes for layer in unit) for unit in units), 1

    def follow_scale(self) -> None:
        """Undoes the last step if the GradScaler has skipped it, and rescales residuals if the loss scale has changed.

        Every step begins with this call. Also call ``follow_scale`` before saving states, after ``scaler.update()``.
        """
        self._take_back_left_over()
        self._scale.follow(self._controller, self._device)

    def replan(self) -> int | None:
        """Asks for a plan before the next scheduled one, because the data or the network have changed.

        Returns the step at which the plan is due, or None under a fixed or uniform policy, which makes no decisions. All
        ranks must call ``replan`` between the same two steps. The plan uses the gradients of the next ``window`` steps.
        The schedule of later plans stays the same.

        Raises LgrecoError while a step is under way. If some ranks have not called ``replan``, the next step raises an
        LgrecoError on every rank. One case differs: with gradients on a GPU, ``objective="seconds"`` and a ``window`` of 1,
        ranks wait for each other until the group's timeout.
        """
        return self._controller.replan()

    @property
    def settings(self) -> dict[str, str]:
        """Each layer's setting at the last step, as text."""
        return dict(zip(self.names, self._controller.settings()))

    @property
    def plan(self) -> dict[str, Any] | None:
        """The last decision; None before the first.

        The decision has the step, sizes in bits, the error, whether the plan is proved optimal, and the reasons in words
        (``why``). With ``objective="seconds"``, sizes are in picoseconds, and the decision also has seconds of a step's
        exchange, including compression. ``measured_seconds`` was measured since the previous plan, and
        ``computing_seconds`` is the part for compression. ``plan_seconds``, ``default_seconds`` and
        ``uncompressed_seconds`` are predictions.
        """
        return self._controller.decision()

    def memory(self) -> dict[str, int]:
        """Bytes that the run uses on this rank besides its gradients, in ``total`` and by purpose. Known before
        training begins.

        The purposes are ``residuals``, residuals of the previous step (``undo``), PowerSGD's ``factors``, and the
        ``exchange`` of all buckets of a step. On rank 0, ``window`` is the memory of the gradients for the next plan.
        These gradients are kept from the window's first step until the plan. The numbers assume the settings of the last
        plan, or ``default`` before the first plan. The numbers differ from the allocated memory by less than a tenth. The
        system may report less, because some memory is rarely touched.
        """
        parts = dict(self._controller.memory(self._bucket_bytes, self._at_once))
        return {**parts, "total": sum(parts.values())}

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Setting, steps, bytes, relative squared error and norm of the residual by layer. Reads residuals."""
        self._bring_home()
        return {name: self._controller.metrics(layer) for layer, name in enumerate(self.names)}

    def compression_stats(self) -> tuple[float, int, int]:
        """The compression ratio of this process so far, the bytes of all gradients, and the bytes sent for them.

        With ``route="two_level"``, counts the bytes of this rank's shards, and of the shards' payloads between nodes.
        """
        gradients, sent = self._bytes
        return (gradients / sent if sent else 1.0, gradients, sent)

    def _bring_home(self) -> None:
        """Copies residuals from the GPU to the controller, if gradients stay on a GPU."""
        if self._device is not None:
            self._device.bring_home()

    def _plans(self) -> list[dict[str, Any]]:
        return [] if self.plan is None else [self.plan]

    def residual(self, name: str) -> torch.Tensor:
        """A copy of a layer's residual on this rank: float32, flat, in its gradient's order in memory. The copy is zeros if the
        layer has no residual.

        With ``route="two_level"``, the residual has the elements of this rank's shard.
        """
        self._take_back_left_over()
        self._bring_home()
        if name not in self.names:
            raise LgrecoError(f"no layer is called {name!r}: `names` has the names")
        values = bytearray(self._controller.residual(self.names.index(name)))
        return torch.frombuffer(values, dtype=torch.float32) if values else torch.empty(0, dtype=torch.float32, device="cpu")

    def state_dict(self, *, window: bool = True) -> dict[str, Any]:
        """This rank's state by layer name, under a key with the rank. Every rank saves its own state. Bytes are uint8
        tensors, so that ``weights_only=True`` can load them.

        With ``window=False``, rank 0 leaves out the gradients for the next plan, which are as large as the model.
        """
        return {key_of(self._rank()): self._part(window=window)}

    def _part(self, *, window: bool = True) -> dict[str, Any]:
        self._take_back_left_over()
        self._bring_home()
        if window and self._device is not None:
            self._device.bring_observed_home()
        parts = self._controller.save(window)
        layers = {name: to_tensor(part) for name, part in parts if name is not None}
        run = next(to_tensor(part) for name, part in parts if name is None)
        rank, options = self._group.rank(), dict(self._decides)
        saved = {"run": run, "layers": layers, "bytes": list(self._bytes), "scale": self._controller.scale, "rank": rank, "options": options}
        saved["ranks"] = self._ranks()
        return saved if self._nodes is None else {**saved, "place": self._nodes.place}

    def _place(self) -> list[int]:
        """The number of nodes, this rank's node, the number of ranks per node, and this rank's local rank."""
        return [self._group.size(), self._group.rank(), 1, 0] if self._nodes is None else self._nodes.place

    def _is_own(self, state: Mapping[str, Any]) -> bool:
        """Whether a state was saved at this rank's position, so that this rank takes over the state's residuals."""
        # Older states do not contain the rank that saved them.
        rank = self._group.rank()
        return bool(state.get("rank", rank) == rank and state.get("place") == (None if self._nodes is None else self._nodes.place))

    def _alike(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The first state from a rank with the same shard boundaries as this rank, or else the first state."""
        cut = self._place()[2:]
        return next((state for state in states if state.get("place", [0, 0, 1, 0])[2:] == cut), states[0])

    def _taken(self, states: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The states of all ranks of the former nodes that are assigned to this node. Former nodes are dealt out in turn."""
        nodes, node, *_ = self._place()
        former: dict[int, list[Mapping[str, Any]]] = {}
        for at, state in enumerate(states):
            rank = state.get("rank", at)  # missing in older states
            former.setdefault(state["place"][1] if "place" in state else rank, []).append(state)
        return [state for number in sorted(former)[node::nodes] for state in former[number]]

    def _rank(self) -> int:
        return self._members[self._group.rank()]

    def _ranks(self) -> list[int]:
        return self._members

    def _step(self) -> int:
        return self._controller.steps

    def load_state_dict(self, state: Mapping[str, Any], residuals: Sequence[Mapping[str, Any]] | None = None) -> Loaded:
        """Continues from a saved state. All ranks must call ``load_state_dict`` between two steps. Missing layers and lost
        residuals are logged.

        The options of this object apply. Differences from the saved options are logged. A fixed or uniform policy applies
        this object's options at once, and other policies make a new plan after a full window.

        ``residuals`` are the states whose residuals this rank takes over; by default ``state`` itself. With fewer workers
        than before, add the states of ranks that are gone. On a new rank, give the state of any rank and no residuals
        (``[]``). Residuals of an earlier step, such as a dead rank's last residuals, lack the compression errors since
        that step.

        With ``route="two_level"``, ``residuals`` are the states of all ranks of the former nodes whose residuals this
        node takes over. Former nodes may have had another number of ranks. Ranks of a run without nodes are treated as
        nodes of one rank. Each rank finds its shards in these states.

        ``state`` may have the parts of all ranks, as in a distributed checkpoint. This rank then continues from its own part.

        Raises LgrecoError when a state is damaged or of another kind, and while a backward pass exchanges buckets. Also raises
        LgrecoError for the parts of other ranks than those of this run, unless ``residuals`` are given. Everything is then
        unchanged.
        """
        return self._load_parts(state, residuals)

    def _load_part(self, state: Mapping[str, Any], residuals: Sequence[Mapping[str, Any]] | None = None) -> Loaded:
        try:
            self._take_back_left_over()
        except LgrecoError:
            if not self._is_lost():
                raise
        if isinstance(self._state, UnderWay) and self._state.backward.is_known and not self._is_lost():
            raise LgrecoError("a step is under way, and the other ranks wait for its buckets: load on all ranks between two steps")
        taken = [state] if residuals is None else residuals
        for other in (state, *taken):
            if not isinstance(other, Mapping) or not {"run", "layers", "bytes"} <= other.keys():
                raise LgrecoError("the state has no 'run', 'layers' and 'bytes': load a state that state_dict() has returned")
        if residuals is None and not self._is_own(state):
            rank, saved = self._group.rank(), state.get("rank")
            if saved == rank or saved is None:
                whose = f"this is {_worded(self._place())}, and the state is that of {_worded(state.get('place'))}"
            else:
                whose = f"this is rank {rank}, and the state is that of rank {saved}, whose residuals that one takes over"
            raise LgrecoError(f"{whose}: load each rank's own state, or pass the states whose residuals this rank takes over as residuals=, [] for none")
        gradients, sent = map(int, state["bytes"])
        scale = float(state.get("scale", self._controller.scale))
        plan = [to_bytes(state["run"])] + [to_bytes(part) for part in state["layers"].values()]
        residual_parts = [to_bytes(part) for other in taken for part in other["layers"].values()]
        (missing, extra, misshaped), step, oldest = self._controller.load(plan, residual_parts)
        if self._device is not None:
            self._device.forget()
            self._device.observed.forget()
        loaded = Loaded(missing, extra, misshaped, step, oldest)
        self._bytes = [gradients, sent]
        # The next step rescales residuals to the GradScaler's scale, so the GradScaler may be loaded later. Older states
        # have no scale.
        self._controller.note_scale(scale)
        self._state = Between()
        for what, names in (("missing in", loaded.missing), ("too much in", loaded.extra), ("of another shape in", loaded.misshaped)):
            if names:
                _LOG.warning("layers %s the state: %s", what, ", ".join(names))
        self._overrule(state.get("options", self._decides))
        if loaded.oldest_residual < loaded.step:
            steps = (loaded.step, loaded.oldest_residual)
            _LOG.warning("the run continues at step %d with a residual of step %d: what was not sent between them is lost", *steps)
        return loaded

    def _overrule(self, saved: Mapping[str, str]) -> None:
        """Asks for a new plan if the saved run had other options."""
        differing = [name for name in sorted(saved.keys() | self._decides.keys()) if saved.get(name) != self._decides.get(name)]
        if not differing:
            return
        due = self._controller.replan()
        when = "now" if due is None else f"when the next plan is made, before step {due}"
        for name in differing:
            own, was = (of.get(name, "left out") for of in (self._decides, saved))
            _LOG.warning("%s is %s, and was %s in the run that is continued: it has its effect %s", name, own, was, when)


def _worded(place: Sequence[int] | None) -> str:
    if place is None or place[2] == 1:
        return "a rank of a run without nodes"
    nodes, node, per_node, local = place
    return f"local rank {local} of {per_node} on node {node} of {nodes}"


def _warn_of_larger(layers: Sequence[Layer], settings: Mapping[str, str]) -> None:
    """Logs settings that send more bytes than no compression."""
    for layer in layers:
        if (setting := settings.get(layer.name)) is None:
            continue
        sent, uncompressed = (payload_len(text, layer.shape, layer.dtype_name()) for text in (setting, "dense"))
        if sent > uncompressed:
            _LOG.warning("%s: %r sends %d bytes, more than the %d of the layer uncompressed", layer.name, setting, sent, uncompressed)
