"""Compares memory and step times of communication hooks with plain DDP: python benches/memory.py [SCHEME...]

    plain | powersgd | fsdp | hsdp | nodes | OPTIONS of LGreCoState, such as 'method="qsgd"'
    'fsdp: OPTIONS' | 'hsdp: OPTIONS' | 'nodes: OPTIONS' | 'outer: OPTIONS'

A GPT-2 with 124 million parameters, or 350 million with --large, trains over Gloo for 15 steps. The plan takes effect in the
ninth step; a thread begins to plan four steps earlier. There are two ranks. The schemes hsdp and nodes (DDP in two levels) use
two nodes of two ranks.

The table has these columns:
- the resident memory of each rank in GB, in the last step and at its peak;
- seconds of the fastest step after the plan, of the step in which the plan takes effect, and of the slowest step during planning;
- the memory beyond the largest measurement without compression, and the prediction of ``memory()``, both in multiples of the
  f32 gradients.

Needs 12 GB of memory, with --large 24 GB.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS, CONTEXT = 15, 64
USUAL = (
    "plain", "powersgd", 'method="qsgd"', 'method="topk"', 'method="topk", residual_dtype=torch.int8', 'method="powersgd"', "",
    "fsdp", 'fsdp: method="qsgd"', 'fsdp: method="topk"', "hsdp", 'hsdp: method="qsgd"', 'outer: method="topk"',
)  # fmt: skip
START, LEAD = 8, 4  # the default of lead is half of start_iter here
PLAN = {"start_iter": START, "period": 1000, "window": 2}


class Gpt(nn.Module):
    """GPT-2 with a tied head."""

    def __init__(self, width: int, depth: int, vocabulary: int = 50257) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
        options: dict[str, Any] = {"batch_first": True, "norm_first": True, "activation": "gelu"}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, **options) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.token(x) + self.position.weight[: x.shape[1]]
        mask = torch.triu(torch.full((x.shape[1],) * 2, float("-inf")), 1)
        for block in self.blocks:
            h = block(h, src_mask=mask)
        return self.head(self.norm(h))


def resident(key: str) -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key)) / 1e6


def wrapped(model: Gpt, scheme: str) -> tuple[nn.Module, Callable[[], None], Any]:
    """Returns the module to call in a step, a function to call after the step, and the state."""
    from lgreco.torch import LGreCoState, OuterStep, lgreco_hook, register

    kind, _, text = scheme.partition(":")
    kind = kind.strip()
    text = {"fsdp": text, "hsdp": text, "nodes": text, "outer": text, "plain": "", "powersgd": ""}.get(kind, scheme)
    options = eval(f"dict({text})", {"torch": torch})
    if kind in ("fsdp", "hsdp"):
        mesh = init_device_mesh("cpu", (2,) if kind == "fsdp" else (2, 2), mesh_dim_names=("between", "within")[-1 if kind == "fsdp" else 0 :])
        if kind == "hsdp" and text:
            options["replicate_group"], mesh = mesh.get_group("between"), mesh["within"]
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, lambda: None, register(model, **PLAN, **options) if text else None
    if kind == "outer":
        outer = OuterStep(model, every=3, period=1, **options)
        return model, outer.step, outer
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=3, min_compression_rate=1)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return ddp, lambda: None, None
    if kind == "plain" or scheme == "nodes":
        return ddp, lambda: None, None
    lgreco = LGreCoState(None, ddp, **PLAN, **options)
    ddp.register_comm_hook(lgreco, lgreco_hook)
    return ddp, lambda: None, lgreco


def ranks_of(scheme: str) -> int:
    return 4 if scheme.startswith(("hsdp", "nodes")) else 2


def run(rank: int, scheme: str, size: tuple[int, int], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"], os.environ["LOCAL_WORLD_SIZE"] = "lo", "2"
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks_of(scheme))
    torch.manual_seed(0)
    model = Gpt(*size)
    gradients = sum(4 * p.numel() for p in model.parameters()) / 1e9
    call, after, state = wrapped(model, scheme)
    foretold = state.memory()["total"] / 1e9 if hasattr(state, "memory") else None
    optimizer, generator = torch.optim.SGD(model.parameters(), 0.01), torch.Generator().manual_seed(rank)
    seconds = []
    for _ in range(STEPS):
        x = torch.randint(0, 50257, (1, CONTEXT + 1), generator=generator)
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(call(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
        optimizer.step()
        after()
        seconds.append(time.perf_counter() - start)
    figures = {"gradients": gradients, "resident": resident("VmRSS"), "peak": resident("VmHWM"), "foretold": foretold, "seconds": seconds}
    torch.save(figures, f"{folder}/{rank}")
    dist.destroy_process_group()


def measured(scheme: str, size: tuple[int, int]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (scheme, size, folder), nprocs=ranks_of(scheme))
        return [torch.load(f"{folder}/{rank}") for rank in range(ranks_of(scheme))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scheme", nargs="*", default=USUAL)
    parser.add_argument("--large", action="store_true", help="350 million parameters")
    arguments = parser.parse_args()
    size = (1024, 24) if arguments.large else (768, 12)
    failed = 0
    print("| scheme | resident, by rank | peak | over uncompressed, in gradients: resident | peak | foretold | seconds per step | with the plan | while it is made |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    plain: dict[str, list[dict[str, Any]]] = {}
    for scheme in arguments.scheme:
        base = next((base for base in ("fsdp", "hsdp", "nodes") if scheme.startswith(base)), "plain")
        if base not in plain:
            plain[base] = measured(base, size)
        try:
            found = plain[base] if scheme == base else measured(scheme, size)
        except mp.ProcessExitedException as error:  # of PyTorch's own hook on Gloo
            print(f"| {scheme} | {error} |", flush=True)
            failed += 1
            continue
        over = [
            ", ".join(f"{(rank[key] - max(other[key] for other in plain[base])) / rank['gradients']:.2f}" for rank in found)
            for key in ("resident", "peak")
        ]
        memory = [", ".join(f"{rank[key]:.2f}" for rank in found) for key in ("resident", "peak")]
        foretold = ", ".join("" if rank["foretold"] is None else f"{rank['foretold'] / rank['gradients']:.2f}" for rank in found)
        seconds = found[0]["seconds"]
        name = scheme or "the default"
        times = f"{min(seconds[START + 1 :]):.2f} | {seconds[START]:.2f} | {max(seconds[START - LEAD : START]):.2f}"
        print(f"| {name} | {' | '.join(memory)} | {' | '.join(over)} | {foretold} | {times} |", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
