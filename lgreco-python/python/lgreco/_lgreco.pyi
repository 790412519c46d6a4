"""The extension module, made by the crate lgreco-python from lgreco-train. lgreco.torch builds on it."""

from collections.abc import Callable
from typing import Any, final

__all__ = [
    "Bucket",
    "Controller",
    "Device",
    "DeviceBucket",
    "DeviceWindow",
    "LgrecoError",
    "PlanPage",
    "PlanResult",
    "PlanTask",
    "Report",
    "Request",
    "__version__",
    "after_fork",
    "check_plan",
    "make_plan",
    "methods_of_options",
    "payload_len",
    "peer_error",
    "plan_page",
    "run_command",
]

__version__: str

class LgrecoError(ValueError):
    """An argument that lgreco refuses, or a failure on some rank."""

    code: int | None
    """The permanent number of the kind of error, as in the C API; None for errors in arguments."""
    layer: str | None
    """The name of the layer at fault."""
    peer: int | None
    """The rank that failed, if it was another one."""
    peer_code: int | None
    """The code of the error on the rank that failed. ``peer_code or code`` is the same on all ranks."""

def make_plan(
    model: list[tuple[str, list[int], str, int]] | str,
    solver: str,
    **options: Any,
) -> tuple[str, PlanPage]:
    """Measures layers and plans. Returns the JSON of a plan file, and its page.

    ``model`` is a list of layers (name, dims, dtype, address of contiguous values). It can also be the path of a
    safetensors file, of an index of several files, or of a folder with them.

    Options are ``method``, ``default``, ``candidates``, ``widths``, ``metric``, ``workers``, ``min_elements``,
    ``random_seed``, ``alpha``, ``budget``, ``size``, ``groups`` and ``fixed``.
    """

def check_plan(json: str) -> str:
    """Checks a plan file and returns it."""

def plan_page(json: str) -> str:
    """Makes a page of HTML about a plan from its file alone."""

def methods_of_options() -> list[tuple[str, list[str]]]:
    """The methods under which the options ``widths`` and ``residual_dtype`` have an effect."""

def payload_len(setting: str, dims: list[int], dtype: str) -> int:
    """Number of bytes that a layer sends under a setting."""

def run_command(arguments: list[str]) -> int:
    """Runs the lgreco command with these arguments, beginning with the program's name; returns its exit code."""

def after_fork() -> None:
    """Drops the thread pool of the parent process, after a fork."""

def peer_error(rank: int, code: int) -> LgrecoError:
    """The error for a failure with this code on another rank; code 0 means that the ranks disagree about the
    exchange."""

@final
class Request:
    """A collective on memory of a bucket or controller, which stays valid until the next call of ``next`` or
    ``control``.

    For an all-to-all on a device, the received bytes lie before this rank's message to itself. All messages have the
    same length.
    """

    kind: str
    """all_reduce, all_reduce_bf16, all_gather, all_gather_each, broadcast, all_to_all, reduce_scatter or reduce_scatter_bf16."""
    address: int
    length: int
    """Number of bytes at ``address``."""
    lens: list[int]
    """Bytes of each rank's part, or values of each part for a reduce-scatter; empty if parts are equal or there are
    none."""
    root: int
    received_address: int
    received_length: int
    received_lens: list[int]
    group: str
    """The group that performs the collective: ``"node"`` or ``"peers"`` in training by two levels, else empty."""

@final
class PlanPage:
    """The data that a page about a plan needs and that the plan's file lacks."""

    def html(self) -> str:
        """Returns the page. Solves for the size-error frontier."""

@final
class Report:
    """The report of a step."""

    step: int
    outcome: str
    """exchanged, passed_through (some rank's gradients were not finite) or failed."""
    switched: bool
    """Whether this was the first step under new settings."""
    bytes_in: int
    bytes_out: int
    planning_seconds: float | None
    exchange_seconds: float | None

@final
class PlanTask:
    """The work of a decision, which any thread may do."""

    def run(self) -> PlanResult: ...

@final
class PlanResult:
    """The result of a PlanTask."""

@final
class Bucket:
    """Layers that are exchanged together in one step; empty until a controller opens it."""

    def __new__(cls) -> Bucket: ...
    def rounds(self) -> int:
        """The largest possible number of collectives."""

    def join(self) -> None:
        """Declares that the gradients will be one piece of f32 values, layer after layer, on all ranks. Call it before
        ``submit`` or ``submit_failure``. If all layers are uncompressed, one collective then sums them all in place
        (``is_joined``)."""

    @property
    def is_joined(self) -> bool: ...

    def submit(self, addresses: list[int], hold_zeros: bool) -> None:
        """Submits this step's gradients, adds residuals and compresses.

        ``addresses`` has the address of contiguous values for each layer. The values must stay in place, unused by
        others, until ``next`` returns None or raises, or the bucket is closed. With ``hold_zeros``, a layer whose
        gradient is all zeros keeps its residual instead of sending it.
        """

    def submit_failure(self, out_of_memory: bool) -> None:
        """Submits a failure instead of gradients. All ranks learn of it, and ``next`` raises on all of them."""

    def next(self) -> Request | None:
        """Continues after the previous collective is done, and returns the next; None when the gradients are means.

        In training by two levels, also returns None before the last collective; ``is_paused`` is then True. The next
        call allocates memory for that collective and returns it. Raises LgrecoError on all ranks after a failure on
        one. While ``is_paused``, a lack of memory raises it on this rank alone.
        """

    @property
    def is_paused(self) -> bool: ...

    @property
    def is_closed(self) -> bool:
        """Whether the bucket has no layers, because it is not open yet or already closed."""

@final
class Controller:
    """A rank's controller: the layers' settings, their residuals, and the schedule of decisions.

    ``layers`` are (name, dims, dtype, ends); dtype is float32, float16 or bfloat16. With ``route="sharded"``, ``ends``
    has the end of each rank's shard in elements; else it is empty. With ``loss_scaling``, gradients that are not finite
    are no error. Options are those of ``lgreco.torch.LGreCoState``.

    ``place`` is this rank's position in training by two levels: number of nodes, node, ranks per node, local rank.
    Settings, residuals and plans are then those of this rank's shards.
    """

    def __new__(
        cls,
        layers: list[tuple[str, list[int], str, list[int]]],
        rank: int,
        world_size: int,
        loss_scaling: bool,
        place: list[int] | None = None,
        /,
        **options: Any,
    ) -> Controller: ...
    @property
    def steps(self) -> int:
        """Number of steps taken."""

    def begin_step(self, learning_rate: float) -> None:
        """Begins a step, on all ranks."""

    def control(self) -> Request | None:
        """Returns the next collective by which the ranks agree before the step's buckets. In most steps the first call returns
        None."""

    def open(self, layers: list[int], bucket: Bucket) -> None:
        """Lends layers to a bucket for an exchange; all ranks open the same layers in the same order."""

    def open_shards(self, layers: list[int], bucket: Bucket) -> None:
        """Like ``open``, but lends this rank's shards, for an exchange with its peers alone. The gradients are then the means of
        the node's ranks."""

    def shard_lens(self, layer: int) -> list[int]:
        """Number of elements of each local rank's shard of a layer, in training by two levels. Without nodes, the list
        has one number, for the whole layer."""

    def close(self, bucket: Bucket) -> None:
        """Takes the layers back from a bucket."""

    def metrics_line(self, report: Report) -> str:
        """A step's report with the last decision and the metrics of all layers, as one line of JSON."""

    def summary(self) -> str:
        """The present settings in one line."""

    def finish_step(self) -> Report:
        """Ends the step, after all buckets were closed."""

    def watches(self) -> bool:
        """Whether this rank must observe the gradients of the step under way."""

    def observe(self, layers: list[int], addresses: list[int]) -> None:
        """Observes gradients, by host address, of layers that are exchanged outside the controller."""

    def window_step(self) -> int:
        """Number of the step under way in its window, from 1 on; 0 if its gradients need not be observed."""

    def observes_elsewhere(self) -> bool:
        """Whether a ``DeviceWindow`` has gradients for the next plan."""

    def note_observed(self, layers: list[int]) -> None:
        """Records that a ``DeviceWindow`` has gradients of the step under way. The next plan's task then needs that window."""

    def forget_observed(self) -> None:
        """Discards the observed gradients and starts again, because the last step failed on the device. Call it between
        two steps."""

    def note_exchanged(self, layers: list[int]) -> None:
        """Records that these layers are exchanged outside the controller in the step under way."""

    def meter_elsewhere(self, elsewhere: bool) -> None:
        """Sets whether exchange times come from ``record_exchange`` instead of the controller's clock, from the next
        step on. Call it between two steps, with ``objective="seconds"``."""

    def probe_bytes(self) -> int | None:
        """The bytes that a probe gathers in total; None unless the step under way is the step for probes and trials.
        Call it in a step, on all ranks."""

    def record_exchange(self, wire_bytes: float, seconds: float, computing: float) -> None:
        """Records, between two steps, bytes and seconds of the last step's exchange outside the controller.
        ``computing`` is the part of the seconds for compression."""

    def record_probe(self, nothing: float, all: float) -> None:
        """Records, between two steps, the shortest times, in seconds, of gathering 8 bytes per rank and of a probe."""

    def trials(self, layers: list[int]) -> list[list[str]]:
        """Settings to time on layers that are exchanged together: for each kind of method, one setting per layer."""

    def record_trial(self, layers: list[int], settings: list[str], seconds: float) -> None:
        """Records, between two steps, the seconds of a trial: compressing once under these settings, and decompressing
        all ranks' payloads."""

    def record_error(self, layer: int, relative_error: float) -> None:
        """Records, between two steps, a layer's relative squared error in the last step, for an exchange outside the
        controller."""

    def memory(self, bucket_bytes: int, at_once: int) -> list[tuple[str, int]]:
        """Bytes of memory by purpose, for at most ``at_once`` buckets of ``bucket_bytes`` each in flight."""

    def is_plan_due(self) -> bool:
        """Whether the next step begins with a decision. The decision's task must be done before."""

    def roll_back(self) -> None:
        """Undoes the last step's changes of the residuals, because its means were not applied."""

    def abandon_step(self) -> None:
        """Abandons the step under way, after its buckets were closed. Residuals return to their values before the step, which may
        begin again."""

    def rescale_residuals(self, factor: float) -> None:
        """Multiplies all residuals by ``factor``, because later gradients are multiplied by it too."""

    @property
    def scale(self) -> float:
        """The loss scale of the residuals' values."""

    def note_scale(self, scale: float) -> None:
        """Sets the loss scale without changing the residuals."""

    def follow_scale(self, scale: float) -> None:
        """Rescales all residuals to a new loss scale. An interrupt takes effect before or after this call, not within it."""

    def forget_moved(self, addresses: list[int]) -> None:
        """Sets a residual's value to 0 where the mean is not 0. ``addresses`` has the address of each layer's contiguous float32
        means."""

    def compress_warmup(self) -> None:
        """Compresses with the default settings before the first decision; to be called before the first step."""

    def set_settings(self, settings: list[str]) -> None:
        """Gives new settings, one per layer, to a controller with fixed settings; they apply from the next step on."""

    def replan(self) -> int | None:
        """Asks for a decision before the next scheduled one. Returns the step at which it is due, or None if there are
        no more decisions."""

    def take_plan_task(self) -> PlanTask | None:
        """Takes the work of the next decision, on the rank that measures. Returns None unless ``lead`` lets the work
        begin before the decision, or a ``DeviceWindow`` has the gradients."""

    def hand_in(self, result: PlanResult) -> bool:
        """Takes the result of a task; returns whether it is still needed."""

    def settings(self) -> list[str]:
        """Settings of the last step as text, one per layer."""

    def decision(self) -> dict[str, Any] | None:
        """The last decision."""

    def metrics(self, layer: int) -> dict[str, Any]:
        """Measurements of a layer."""

    def residual(self, layer: int) -> bytes:
        """A layer's residual: f32 values."""

    def save(self, window: bool) -> list[tuple[str | None, bytes]]:
        """This rank's state in parts: (None, the state that belongs to no layer), then (name, bytes) per layer."""

    def load(self, plan: list[bytes], residuals: list[bytes]) -> tuple[list[list[str]], int, int]:
        """Continues from one rank's parts, with the residuals of one or more ranks.

        Returns the layers that are missing, extra and misshaped, the step, and the step of the oldest residual.
        """

@final
class DeviceBucket:
    """Layers that are exchanged together in a device's memory, under their settings when the bucket was made."""

    @property
    def found_inf(self) -> int:
        """Device address of a float32 that is 1 after a step that failed on some rank, else 0."""

    @property
    def outcome(self) -> tuple[int, int]:
        """Device address and number of bytes of the last step's outcome. Copy them after the step."""

    def fault(self, outcome: bytes) -> tuple[bool, int | None, LgrecoError | None, bool]:
        """Reads a copy of an outcome.

        Returns whether the step failed on some rank, the first rank at fault, the error, and whether only this rank knows of the
        failure. The error is this rank's own, or describes a wrong payload of another rank. Only this rank knows of a failure in
        the payloads that it received for its shards.
        """

    @property
    def residuals(self) -> tuple[int, int]:
        """Two addresses: of the residuals of all layers, and of an int32 that is 0 or 1.

        There are two copies of the float32 residuals, one after the other. The int32 says which of them is current
        between two steps.
        """

    @property
    def forgetful(self) -> list[int]:
        """Positions, within the bucket, of the layers without error feedback."""

    def suits(self, controller: Controller) -> bool:
        """Whether the layers' settings are still those of the bucket."""

@final
class Device:
    """A stream of a CUDA device, given by its handle. Stream and context must outlive this object. The default stream uses the
    current context.

    Calls only enqueue work unless their description begins with "Waits". Addresses are in device memory. The calls use that memory
    in the order of the stream.
    """

    def __new__(cls, stream: int) -> Device: ...
    def bytes(self, controller: Controller, layers: list[int], settings: list[str] | None = None) -> int:
        """Bytes of device memory for a bucket of these layers, under these settings or the controller's.

        Raises LgrecoError for settings that cannot be exchanged on a device.
        """

    def bucket(self, controller: Controller, layers: list[int], memory: int, settings: list[str] | None = None) -> DeviceBucket:
        """Waits: makes a bucket with the controller's residuals in ``memory``, which it owns until its work is done.

        With separate ``settings``, one per layer, it keeps no residuals.
        """

    def take_over(self, bucket: DeviceBucket, other: DeviceBucket) -> None:
        """Waits: copies residuals and the step number from ``other`` to ``bucket``. Both have the same layers, on this device."""

    def submit(self, bucket: DeviceBucket, gradients: int) -> None:
        """Submits this step's gradients, adds residuals and compresses.

        The gradients lie one after the other from the address ``gradients`` on. They must stay there, unused by others, until
        ``next`` has returned None.
        """

    def submit_failure(self, bucket: DeviceBucket, gradients: int) -> None:
        """Submits a failure instead of gradients. All ranks learn of it, and ``next`` raises it instead of returning None."""

    def next(self, bucket: DeviceBucket) -> Request | None:
        """Continues after the previous collective was enqueued, and returns the next; None once the means are enqueued.

        Raises LgrecoError in place of None when the device refused a call. All ranks have then made the same
        collectives.
        """

    def forget(self, bucket: DeviceBucket) -> None:
        """After a step without failure: clears the residuals of layers without error feedback."""

    def take_home(self, controller: Controller, bucket: DeviceBucket, before: int, forgotten: list[int] | None = None) -> None:
        """Waits: copies the residuals from before step ``before`` to the controller. This step is the last submitted one or the
        next one.

        Layers at the positions ``forgotten`` get zeros.
        """

    def take_out(self, controller: Controller, bucket: DeviceBucket) -> None:
        """Waits: copies the controller's residuals to the bucket, between two steps."""

@final
class DeviceWindow:
    """The mean gradients of a window's steps, for all layers of a controller, in a device's memory."""

    def __new__(cls, device: Device, controller: Controller, memory: int) -> DeviceWindow:
        """Makes an empty window in ``memory``, aligned to 16 bytes, which it owns until its work is done."""

    @staticmethod
    def bytes(controller: Controller) -> int:
        """Bytes of device memory for a window."""

    def observe(self, device: Device, layers: list[int], addresses: list[int], step: int) -> None:
        """Averages gradients of these layers into their means, as step ``step`` of the window; each layer at most once
        per step."""

    def take_home(self, device: Device, controller: Controller, layers: list[int]) -> None:
        """Waits: copies the means of these layers to the controller, between two steps."""

    def plan(self, device: Device, task: PlanTask, allocate: Callable[[int], int]) -> PlanResult:
        """Waits: runs a plan task on the observed gradients, on a stream that follows the work on them.

        ``allocate`` takes a number of bytes and returns the address of memory aligned to 256 bytes. The call uses this
        memory until it returns. Raises errors of the device; the task can then be taken again.
        """
