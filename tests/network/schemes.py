"""The schemes to compare: hooks of PyTorch and of lgreco. Each value registers a hook with a DDP module."""

from typing import Any

import torch
import torch.distributed as dist
from names import ALONE, PLAIN
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

UNCOMPRESSED = 4  # number of first steps that lgreco and PyTorch's PowerSGD send uncompressed
DECIDES = 10  # steps between two decisions by measured seconds
PUBLISHED = "qsgd,topk,powersgd"  # the meaning of "hybrid" when these schemes were first measured
FEW_BITS = ["full", 8, 6, 5, 4, 3, 2]


def _waited(state: powerSGD_hook.PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Runs PyTorch's PowerSGD, but waits for each bucket. Without this wait, PyTorch's hook aborts on Gloo if there are
    several buckets."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(powerSGD_hook.powerSGD_hook(state, bucket).wait())
    return done


def _power(rank: int) -> Any:
    def register(ddp: DDP) -> Any:
        state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=UNCOMPRESSED, min_compression_rate=1)
        ddp.register_comm_hook(state, _waited)
        return state

    return register


def _alone(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _bf16_summed_in_f32(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sends bf16 and sums in f32: each rank sums its part of all gradients, and sends the mean to all ranks."""
    gradients, world, rank = bucket.buffer(), dist.get_world_size(), dist.get_rank()
    length = -(-gradients.numel() // world)
    parts = torch.zeros(world, length, dtype=torch.bfloat16)
    parts.view(-1)[: gradients.numel()] = gradients
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts)
    parts[rank] = received.float().sum(0) / world
    dist.all_gather_into_tensor(received.view(-1), parts[rank])
    gradients.copy_(received.view(-1)[: gradients.numel()])
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


def _ours(**options: Any) -> Any:
    def register(ddp: DDP) -> Any:
        from lgreco.torch import LGreCoState, lgreco_hook

        state = LGreCoState(None, ddp, **{"start_iter": UNCOMPRESSED, "period": 50, "window": 2, "undo": True, **options})
        ddp.register_comm_hook(state, lgreco_hook)
        return state

    return register


def _measured(**options: Any) -> Any:
    """Compresses layers if measurements show that compression is faster. Decides often, so that a run needs few
    steps."""
    return _ours(objective="seconds", start_iter=2 * UNCOMPRESSED, period=DECIDES, **options)


SCHEMES: dict[str, Any] = {
    ALONE: lambda ddp: ddp.register_comm_hook(None, _alone),
    PLAIN: lambda ddp: None,
    "allreduce_hook": lambda ddp: ddp.register_comm_hook(None, default_hooks.allreduce_hook),
    "bf16_compress_hook": lambda ddp: ddp.register_comm_hook(None, default_hooks.bf16_compress_hook),
    "fp16_compress_hook": lambda ddp: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "bf16, summed in f32": lambda ddp: ddp.register_comm_hook(None, _bf16_summed_in_f32),
    "powerSGD_hook 4": _power(4),
    "powerSGD_hook 8": _power(8),
    "lgreco uncompressed": _ours(policy="uncompressed"),
    "lgreco QSGD 4, uniform": _ours(method="qsgd", policy="uniform"),
    "lgreco QSGD 4": _ours(method="qsgd"),
    "lgreco QSGD 4, scatter-reduce": _ours(method="qsgd", route="scatter_reduce"),
    "lgreco TopK 1 %, uniform": _ours(method="topk", policy="uniform"),
    "lgreco TopK 1 %": _ours(method="topk", widths=["full"]),
    "lgreco TopK 1 % in few bits": _ours(method="topk", widths=FEW_BITS),
    "lgreco TopK 3 % in few bits": _ours(method="topk", default=0.03, widths=FEW_BITS),
    "lgreco TopK 5 % in few bits": _ours(method="topk", default=0.05, widths=FEW_BITS),
    "lgreco PowerSGD 4": _ours(method="powersgd"),
    "lgreco PowerSGD 4, bf16": _ours(method="powersgd", reduce_dtype=torch.bfloat16),
    "lgreco PowerSGD 8, bf16": _ours(method="powersgd", default=8, reduce_dtype=torch.bfloat16),
    "lgreco hybrid": _ours(method=PUBLISHED, widths=FEW_BITS),
    "lgreco hybrid, 15 Mbit": _ours(method=PUBLISHED, budget=15_000_000, widths=FEW_BITS),
    "lgreco EDEN 3, uniform": _ours(method="eden", policy="uniform"),
    "lgreco EDEN 2, uniform": _ours(method="eden", default=2, policy="uniform"),
    "lgreco EDEN 1, uniform": _ours(method="eden", default=1, policy="uniform"),
    "lgreco EDEN 3, flat": _ours(method="eden", policy="uniform", route="all_gather"),
    "lgreco EDEN 3, two-level": _ours(method="eden", policy="uniform", route="two_level"),
    "lgreco default": _ours(),
    "lgreco default, flat": _ours(route="all_gather"),
    "lgreco default, two-level": _ours(route="two_level"),
    "lgreco default, 2 bits, bf16": _ours(default=2, reduce_dtype=torch.bfloat16),
    "lgreco default, 1 bit, bf16": _ours(default=1, reduce_dtype=torch.bfloat16),
    "lgreco QSGD 4, seconds": _measured(method="qsgd"),
    "lgreco TopK 5 % in few bits, seconds": _measured(method="topk", default=0.05, widths=FEW_BITS),
    "lgreco PowerSGD 8, bf16, seconds": _measured(method="powersgd", default=8, reduce_dtype=torch.bfloat16),
    "lgreco hybrid, seconds": _measured(method=PUBLISHED, widths=FEW_BITS),
    "lgreco default, seconds": _measured(),
    "lgreco default, 1 bit, bf16, seconds": _measured(default=1, reduce_dtype=torch.bfloat16),
    "lgreco default, few plans, seconds": _ours(objective="seconds", start_iter=10),
}
"""Schemes by name. A budget is a number of bits per step, or the size of the uniform setting with values of full width,
even if the scheme offers other widths."""


def bytes_sent(name: str, state: Any, parameters: int) -> int | None:
    """Bytes that this process has sent so far; ``None`` if the scheme does not count bytes."""
    if not hasattr(state, "compression_stats"):
        return None
    # PyTorch's hook counts elements, not bytes.
    return state.compression_stats()[2] * (4 if name.startswith("powerSGD") else 1)


def bytes_per_step(name: str, parameters: int) -> int:
    """Bytes per step of a scheme that does not count its bytes."""
    return 0 if name == ALONE else parameters * (2 if "16" in name else 4)
