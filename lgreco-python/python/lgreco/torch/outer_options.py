"""Options of outer steps: checks, the division of a model into fragments, and the options of each fragment."""

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import torch
import torch.distributed as dist

from lgreco._lgreco import LgrecoError
from lgreco.torch.fragment import Named, elements
from lgreco.torch.groups import expect_group
from lgreco.torch.layers import local, sharded_over, uncompiled
from lgreco.torch.options import Options, wrong_route
from lgreco.torch.route import methods_of

_OPTIONS = (
    "process_group", "every", "learning_rate", "momentum", "feedback_decay", "fragments", "delay", "joined", "forget_moved",
    *(name for name in Options.__annotations__ if name != "grad_scaler"),
)  # fmt: skip
_RANGES: dict[str, tuple[float, float, str]] = {
    "learning_rate": (math.nextafter(0.0, 1.0), math.nextafter(math.inf, 0.0), "a number above 0"),
    "momentum": (0.0, math.nextafter(1.0, 0.0), "a number from 0 to below 1"),
    "feedback_decay": (math.nextafter(0.0, 1.0), 1.0, "a number above 0 and at most 1"),
}
"""The range of each option: smallest value, largest value, and the range in words."""


def unknown_or_scaled(options: Mapping[str, Any]) -> LgrecoError | None:
    """The error for an option that OuterStep does not have, or None."""
    for name in options:
        if name == "grad_scaler":
            return LgrecoError("pseudo-gradients are not scaled: leave grad_scaler out")
        if name not in Options.__annotations__:
            return LgrecoError(f'no option is called "{name}"; there are {", ".join(_OPTIONS)}')
    return None


def wrong_steps(every: int, fragments: int, delay: int, layers: int) -> LgrecoError | None:
    """The error for numbers of steps and fragments that do not fit together, or None."""
    if not isinstance(every, Integral) or every < 1:
        return LgrecoError(f"every is {every!r}, expected a whole number of at least 1")
    if not isinstance(fragments, Integral) or not 1 <= fragments <= min(every, layers):
        return LgrecoError(f"fragments is {fragments!r}, expected 1 to {min(every, layers)}: steps and layers there are")
    if not isinstance(delay, Integral) or not 0 <= delay < every:
        return LgrecoError(f"delay is {delay!r}, expected 0 to {every - 1}: the next outer step begins after {every}")
    return None


def wrong_numbers(numbers: Mapping[str, object]) -> LgrecoError | None:
    """The error for the first option whose number is outside its range, or None."""
    for name, value in numbers.items():
        least, greatest, expected = _RANGES[name]
        if not isinstance(value, Real) or not least <= float(value) <= greatest:
            return LgrecoError(f"{name} is {value!r}, expected {expected}")
    return None


def wrong_settings(settings: object, layers: Sequence[str], joined: bool) -> LgrecoError | None:
    """The error for settings of layers that the model lacks, or None."""
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        return LgrecoError(f"settings is {settings!r}, expected a setting per name of a layer")
    what = "fragment whose layers are joined" if joined else "trainable parameter of the model"
    return next((LgrecoError(f"settings for {name!r}, which is no {what}") for name in settings if name not in layers), None)


def averaged(model: torch.nn.Module) -> LgrecoError | None:
    """The error for a model in DDP, whose processes do not train separately, or None."""
    if not isinstance(uncompiled(model), torch.nn.parallel.DistributedDataParallel):
        return None
    way_out = "give OuterStep the module within, which processes train apart, or workers of several processes each"
    return LgrecoError(f"model is a DistributedDataParallel, which averages gradients in every step: {way_out}")


def shared(
    model: torch.nn.Module, named: Named, group: dist.ProcessGroup | None
) -> LgrecoError | None:
    """The error for a group whose ranks hold different shards of the model, or None."""
    expect_group(group)
    if not dist.is_initialized():
        return None
    holders = sharded_over(model, [p for _, p in named])
    averaging = dist.get_process_group_ranks(group)
    if len(set(holders) & set(averaging)) <= 1:
        return None
    way_out = "give OuterStep as process_group a group of ranks that hold the same shards, one of each node"
    return LgrecoError(f"the model is sharded over ranks {holders}, and process_group, which averages it, has ranks {averaging}: {way_out}")


def idle_or_wrong(options: Options, forget_moved: bool) -> LgrecoError | None:
    """The error for a route that cannot work, or for ``forget_moved`` if no layer has a residual; otherwise None."""
    if (wrong := wrong_route(options, None, "")) is not None:
        return wrong
    beside = None
    methods = methods_of(options.get("method"), options.get("settings"))
    if options.get("policy") == "uncompressed":
        beside = "policy='uncompressed'"
    elif options.get("error_feedback") is False:
        beside = "error_feedback=False"
    elif methods <= {"qsgd", "eden"}:
        beside = f"settings={options['settings']!r}" if options.get("settings") is not None else f"method={options.get('method')!r}"
    if not forget_moved or beside is None:
        return None
    return LgrecoError(f"forget_moved is {forget_moved!r}, which has no effect beside {beside}: no layer has a residual; leave it out")


def options_of(
    told: Options,
    joined: str | None,
    part: Named,
    named: Named,
) -> Options:
    """The options of a fragment's controller."""
    options: Options = {**told}
    if isinstance(budget := told.get("budget"), Integral):
        options["budget"] = int(budget) * elements(part) // max(1, elements(named))
    if settings := told.get("settings"):
        layers = [joined] if joined else [name for name, _ in part]
        options["settings"] = {name: settings[name] for name in layers if name in settings}
    return options


def divided(named: Named, parts: int) -> list[Named]:
    """Divides layers into consecutive parts with about the same number of elements each. No part is empty."""
    total = elements(named)
    divided: list[Named] = [[] for _ in range(parts)]
    at = before = 0
    for index, layer in enumerate(named):
        left = len(named) - index
        while at < parts - 1 and divided[at] and (before >= total * (at + 1) / parts or left <= parts - 1 - at):
            at += 1
        divided[at].append(layer)
        before += local(layer[1]).numel()
    return divided
