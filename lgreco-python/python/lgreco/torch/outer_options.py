"""Options of outer steps: checks, the division of a model into fragments, and the options of each fragment."""

from numbers import Integral

import torch
import torch.distributed as dist

from lgreco._lgreco import LgrecoError
from lgreco.torch.fragment import Named, elements
from lgreco.torch.groups import expect_group
from lgreco.torch.layers import local, sharded_over, uncompiled
from lgreco.torch.options import Options, wrong_route
from lgreco.torch.route import methods_of


def averaged(model: torch.nn.Module) -> LgrecoError | None:
    """The error for a model whose processes do not train separately, or None."""
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
