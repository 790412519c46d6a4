"""The extension module: what the crate lgreco-python makes of lgreco-train. lgreco.torch is made of it."""

from collections.abc import Callable
from typing import Any, final

__all__ = [
    "Bucket",
    "Controller",
    "Device",
    "DeviceBucket",
    "DeviceWindow",
    "LgrecoError",
    "PlanResult",
    "PlanTask",
    "Report",
    "Request",
    "__version__",
    "after_fork",
    "check_plan",
    "make_plan",
    "payload_len",
    "peer_error",
    "run_command",
]

__version__: str

class LgrecoError(ValueError):
    """Something that lgreco refuses, or that went wrong on some rank."""

    code: int | None
    """The permanent number of the kind of error, shared with the C API. Errors in arguments have none."""
    layer: str | None
    """The name of the layer at fault."""
    peer: int | None
    """The rank that failed, in an error of other ranks than that."""
    peer_code: int | None
    """The code of the error on the rank that failed: ``peer_code or code`` is the same on all ranks."""

def make_plan(
    model: list[tuple[str, list[int], str, int]] | str,
    solver: str,
    **options: Any,
) -> str:
    """Measures layers (name, dims, dtype, address of contiguous values) and plans: the JSON of a plan file.

    Instead of layers, the path of a safetensors file, of an index of several or of a folder with them.

    Options are ``method``, ``default``, ``candidates``, ``widths``, ``metric``, ``workers``, ``min_elements``,
    ``random_seed``, ``alpha``, ``budget``, ``size``, ``groups`` and ``fixed``.
    """

def check_plan(json: str) -> str:
    """The same plan file, once it has been checked."""

def payload_len(setting: str, dims: list[int], dtype: str) -> int:
    """Bytes that a layer sends under a setting."""

def run_command(arguments: list[str]) -> int:
    """The lgreco command with these arguments, the program's name first; gives its exit code."""

def after_fork() -> None:
    """Forgets the threads of the process that this one was forked from."""

def peer_error(rank: int, code: int) -> LgrecoError:
    """The error on a rank when another has failed with an error of this code; with 0, when that one wants something else."""

@final
class Request:
    """A collective on memory of a bucket or controller, which stays in its place until that is asked to go on.

    On a device what comes by an all-to-all lies before this rank's message to itself, which is as long as each of the others'.
    """

    kind: str
    """all_reduce, all_reduce_bf16, all_gather, all_gather_each, broadcast, all_to_all, reduce_scatter or reduce_scatter_bf16."""
    address: int
    length: int
    """Bytes at ``address``."""
    lens: list[int]
    """Bytes of each rank's part, of a reduce-scatter values; empty where parts are equal or there are none."""
    root: int
    received_address: int
    received_length: int
    received_lens: list[int]
    group: str
    """``"node"`` or ``"peers"`` in training by two levels, else empty."""
    is_last: bool
    """In training by two levels, whether it is the last one of its bucket."""

@final
class Report:
    """What became of a step."""

    step: int
    outcome: str
    """exchanged, passed_through (some rank's gradients were not finite) or failed."""
    switched: bool
    """Whether it was the first under new settings."""
    bytes_in: int
    bytes_out: int
    planning_seconds: float | None
    exchange_seconds: float | None

@final
class PlanTask:
    """The work of a decision, for any thread."""

    def run(self) -> PlanResult: ...

@final
class PlanResult:
    """What became of a PlanTask."""

@final
class Bucket:
    """Layers that are exchanged together in one step; none before it is opened."""

    def __new__(cls) -> Bucket: ...
    def rounds(self) -> int:
        """How many collectives there will be, at the most."""

    def submit(self, addresses: list[int], hold_zeros: bool) -> None:
        """Takes this step's gradients, adds residuals and compresses.

        ``addresses`` are those of contiguous values, one per layer, which stay in their place, alive and used by nobody
        else, until ``next`` returns None or raises, or the bucket is closed. With ``hold_zeros`` a layer whose gradient is
        all zeros keeps its residual instead of sending it.
        """

    def submit_failure(self, out_of_memory: bool) -> None:
        """Instead of gradients: tells all ranks that this one's trainer has failed; ``next`` raises on all of them."""

    def next(self) -> Request | None:
        """Goes on, once the collective asked for before is done, to the next; None when the gradients are means.

        Raises LgrecoError on all ranks when something went wrong on one.
        """

    @property
    def is_closed(self) -> bool:
        """Whether its controller has the layers: it is not open yet, or no longer."""

@final
class Controller:
    """Which settings a rank's layers have, what it remembers of them, and when to decide anew.

    ``layers`` are (name, dims, dtype, ends): float32, float16 or bfloat16; with ``route="sharded"`` ``ends`` tells at which
    element each rank's shard ends, else it is empty. With ``loss_scaling`` gradients that are not finite are no error. Options
    are those of ``lgreco.torch.LGreCoState``. ``place`` is that among nodes in training by two levels: nodes, this rank's node,
    ranks per node, local rank. Settings, residuals and plans are then those of this rank's shards.
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
        """Steps taken."""

    def begin_step(self, learning_rate: float) -> None:
        """Begins a step; all ranks do."""

    def control(self) -> Request | None:
        """What ranks have to say to each other before the step's buckets; None at once at most steps."""

    def open(self, layers: list[int], bucket: Bucket) -> None:
        """Lends layers to a bucket that has none, for an exchange; all ranks open the same in the same order."""

    def close(self, bucket: Bucket) -> None:
        """Takes them back."""

    def finish_step(self) -> Report:
        """Ends the step, when all buckets are closed."""

    def watches(self) -> bool:
        """Whether this rank's gradients of the step under way are to be observed."""

    def observe(self, layers: list[int], addresses: list[int]) -> None:
        """Takes note of the gradients, on the host, of layers that are exchanged elsewhere."""

    def window_step(self) -> int:
        """Which of the window's steps the one under way is, from 1 on; 0 where its gradients are not to be observed."""

    def observes_elsewhere(self) -> bool:
        """Whether a ``DeviceWindow`` has gradients that the next plan is to be made of."""

    def note_observed(self, layers: list[int]) -> None:
        """Takes note that gradients of the step under way are in a ``DeviceWindow``, which the next plan's task then needs."""

    def forget_observed(self) -> None:
        """Between two steps: collects gradients for the next plan anew, as the last step has failed elsewhere."""

    def note_exchanged(self, layers: list[int]) -> None:
        """Takes note that layers are exchanged elsewhere in the step under way."""

    def meter_elsewhere(self, elsewhere: bool) -> None:
        """Between two steps, with ``objective="seconds"``: whether seconds are, from the next step on, those that are recorded."""

    def probe_bytes(self) -> int | None:
        """In a step, on all ranks: how many bytes a probe gathers in all, if this is the step for it and for trials."""

    def record_exchange(self, wire_bytes: float, seconds: float, computing: float) -> None:
        """Between two steps: what the last one took where layers are exchanged elsewhere, ``computing`` seconds of it compressing."""

    def record_probe(self, nothing: float, all: float) -> None:
        """Between two steps: the shortest seconds of gathering 8 bytes of each rank, and a probe's."""

    def trials(self, layers: list[int]) -> list[list[str]]:
        """Settings to be tried out on layers that are exchanged together: a list of one per layer for each kind of method."""

    def record_trial(self, layers: list[int], settings: list[str], seconds: float) -> None:
        """Between two steps: seconds of compressing them so once, and of decompressing what all ranks would have sent."""

    def record_error(self, layer: int, relative_error: float) -> None:
        """Between two steps: the relative squared error of what a layer was compressed to elsewhere in the last one."""

    def memory(self, bucket_bytes: int, at_once: int) -> list[tuple[str, int]]:
        """Bytes by what they are for, where so many buckets of so many bytes each are on their way at the same time."""

    def is_plan_due(self) -> bool:
        """Whether the next step is that of a plan, whose task has to be done before."""

    def roll_back(self) -> None:
        """Takes back what the last step has done to residuals, because its means were not applied."""

    def abandon_step(self) -> None:
        """Gives up the step under way, whose buckets are closed: residuals are what they were before it, and it may be begun again."""

    def rescale_residuals(self, factor: float) -> None:
        """Multiplies all residuals, because gradients are from now on so many times what they were."""

    @property
    def scale(self) -> float:
        """What the gradients that are remembered were multiplied by."""

    def note_scale(self, scale: float) -> None:
        """Says what that was."""

    def follow_scale(self, scale: float) -> None:
        """Multiplies all residuals, because gradients are from now on multiplied by this; an interrupt comes before or after it."""

    def forget_moved(self, addresses: list[int]) -> None:
        """Forgets residuals where means are not zero; ``addresses`` are those of contiguous float32 values, one per layer."""

    def compress_warmup(self) -> None:
        """The default settings instead of none before the first decision; before the first step."""

    def set_settings(self, settings: list[str]) -> None:
        """Other settings, one per layer, for a controller with fixed ones; they take effect with the next step."""

    def replan(self) -> int | None:
        """Asks for a decision before the schedule's next; the step at which it is due, None where nothing is left to decide."""

    def take_plan_task(self) -> PlanTask | None:
        """The next decision's work, on the rank that measures, where ``lead`` lets it be done beforehand or a ``DeviceWindow`` has its
        gradients."""

    def hand_in(self, result: PlanResult) -> bool:
        """Takes what became of a task; whether anybody still waits for it."""

    def settings(self) -> list[str]:
        """Settings at the last step as text, one per layer."""

    def decision(self) -> dict[str, Any] | None:
        """The last decision."""

    def metrics(self, layer: int) -> dict[str, Any]:
        """What is known of a layer."""

    def residual(self, layer: int) -> bytes:
        """A layer's residual: f32 values."""

    def save(self, window: bool) -> list[tuple[str | None, bytes]]:
        """This rank's state in parts: what belongs to no layer with None, and each layer's with its name."""

    def load(self, plan: list[bytes], residuals: list[bytes]) -> tuple[list[list[str]], int, int]:
        """Continues from one rank's parts, with the residuals of some; layers that are missing, extra, misshaped, the step, the
        oldest residual's."""

@final
class DeviceBucket:
    """Layers that are exchanged together in a device's memory, under the settings that their controller had when it was made."""

    @property
    def outcome(self) -> tuple[int, int]:
        """Where the device has what it knows of the last step, and how many bytes. A copy, enqueued behind the step, is of that."""

    def fault(self, outcome: bytes) -> tuple[bool, int | None, LgrecoError | None, bool]:
        """What such a copy says: whether the step has failed on some rank, the first rank at fault, and this rank's error, or that of
        the other's payload.

        And whether this rank alone knows of it: it is about what it has got of its own shards.
        """

    @property
    def residuals(self) -> tuple[int, int]:
        """The address of what is remembered of all layers, float32, one after the other, and of as much behind it; and that of an
        int32 that says which of both counts between two steps, 0 or 1."""

    @property
    def forgetful(self) -> list[int]:
        """The places of layers that are to go without error feedback."""

    def suits(self, controller: Controller) -> bool:
        """Whether its layers still have those settings."""

@final
class Device:
    """A stream of a CUDA device, by its handle; both outlive this. The context of the default stream is the current one.

    Calls enqueue, and wait where they say so. Addresses are of device memory, which is used in the order of the stream.
    """

    def __new__(cls, stream: int) -> Device: ...
    def bytes(self, controller: Controller, layers: list[int], settings: list[str] | None = None) -> int:
        """Bytes of memory for a bucket of these layers, under these settings or the controller's.

        Raises LgrecoError for settings that are not exchanged on devices.
        """

    def bucket(self, controller: Controller, layers: list[int], memory: int, settings: list[str] | None = None) -> DeviceBucket:
        """Waits: a bucket with the controller's residuals, in ``memory``, which it has for itself until its work is done.

        Under ``settings`` of its own, one per layer, it remembers nothing.
        """

    def take_over(self, bucket: DeviceBucket, other: DeviceBucket) -> None:
        """Waits: a bucket takes over residuals and step of another of the same layers, both of this device."""

    def submit(self, bucket: DeviceBucket, gradients: int) -> None:
        """Takes this step's gradients, adds residuals and compresses.

        They lie one after the other from the address ``gradients`` on, and stay there, used by nobody else, until ``next`` has
        returned None.
        """

    def submit_failure(self, bucket: DeviceBucket, gradients: int) -> None:
        """In place of ``submit``: all ranks are told that this one has failed; ``next`` raises that in place of None."""

    def next(self, bucket: DeviceBucket) -> Request | None:
        """Goes on, once the collective asked for before is enqueued, to the next; None when the making of the means is.

        Raises LgrecoError in place of None when the device has refused something: all ranks have made the same collectives then.
        """

    def forget(self, bucket: DeviceBucket) -> None:
        """After a step that has not failed: forgets what was not sent of layers that are to go without error feedback."""

    def take_home(self, controller: Controller, bucket: DeviceBucket, before: int, forgotten: list[int] | None = None) -> None:
        """Waits: residuals become the controller's, as they were before this step, the last one submitted or the next.

        Zeros of layers in the places that are ``forgotten``.
        """

    def take_out(self, controller: Controller, bucket: DeviceBucket) -> None:
        """Waits: the controller's residuals become the bucket's, between two steps."""

@final
class DeviceWindow:
    """The mean of the gradients of a window's steps, of all layers of a controller, in a device's memory."""

    def __new__(cls, device: Device, controller: Controller, memory: int) -> DeviceWindow:
        """One without gradients in ``memory``, aligned to 16 bytes, which it has for itself until its work is done."""

    @staticmethod
    def bytes(controller: Controller) -> int:
        """Bytes of memory for a window."""

    def observe(self, device: Device, layers: list[int], addresses: list[int], step: int) -> None:
        """Blends the gradients of these layers, each of them once, with their means, as those of the window's ``step``-th step."""

    def take_home(self, device: Device, controller: Controller, layers: list[int]) -> None:
        """Waits: the means of these layers become the controller's, between two steps."""

    def plan(self, device: Device, task: PlanTask, allocate: Callable[[int], int]) -> PlanResult:
        """Waits: does a task with what was observed, on a stream behind all of that.

        ``allocate`` gives the address of as many bytes as it is asked for, aligned to 256, which stay until then. Raises what goes wrong on
        the device; the task can be taken again.
        """
