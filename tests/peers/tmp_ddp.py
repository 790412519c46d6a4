#!/usr/bin/env python3
"""lgreco's hook beside PyTorch's own under DistributedDataParallel: time, processor time, bytes and loss.

    tests/peers/ddp.py [--rate none|1gbit|100mbit]... [--scheme NAME]... [--steps N] [--learn N] [--seeds N] [--ranks N]

A character transformer of 7.5 million parameters learns the project's own sources, on ranks of one machine that share a
link: the loopback of a network namespace, shaped by tc (root and iproute2). Needs torch and the package lgreco.

With --learn every scheme also learns for so many steps without a limit, over seeds, and the last table says after how many
steps its held-out loss is plain DDP's at three quarters of them, and how long these take at every rate: steps times the
median of a step.
"""

import argparse
import faulthandler
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

HANGS = 600  # seconds after which a rank says where it is, and ends
CONTEXT, BATCH, WIDTH, LAYERS, WARM_UP = 64, 4, 320, 6, 12


class Transformer(torch.nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(characters, WIDTH)
        self.position = torch.nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        return self.head(self.layers(self.embed(text) + self.position, mask, is_causal=True))


def corpus() -> tuple[torch.Tensor, int]:
    root = pathlib.Path(__file__).parents[2]
    text = "".join(path.read_text() for path in sorted(root.glob("lgreco-core/src/**/*.rs")))
    known = sorted(set(text))
    return torch.tensor([known.index(c) for c in text]), len(known)


def batch(text: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
    rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def waited(state: powerSGD_hook.PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PyTorch's PowerSGD, waited on: on Gloo it aborts with several buckets otherwise."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(powerSGD_hook.powerSGD_hook(state, bucket).wait())
    return done


def schemes() -> dict[str, Any]:
    from lgreco.torch import LGreCoState, lgreco_hook

    def ours(**options: Any) -> Any:
        def register(ddp: DDP) -> Any:
            state = LGreCoState(None, ddp, **{"start_iter": 4, "period": 50, "window": 2, **options})
            ddp.register_comm_hook(state, lgreco_hook)
            return state

        return register

    def power(ddp: DDP) -> Any:
        state = powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=4, min_compression_rate=1)
        ddp.register_comm_hook(state, waited)
        return state

    return {
        "ddp": lambda ddp: None,
        "bf16 hook": lambda ddp: ddp.register_comm_hook(None, default_hooks.bf16_compress_hook),
        "fp16 hook": lambda ddp: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
        "powerSGD hook, rank 4": power,
        "lgreco uncompressed": ours(policy="uncompressed"),
        "lgreco qsgd": ours(method="qsgd"),
        "lgreco topk 1 %": ours(method="topk"),
        "lgreco topk 1 %, few bits": ours(method="topk", widths=["full", 8, 6, 5, 4, 3, 2]),
        "few2": ours(method="topk", default=0.02, widths=["full", 8, 6, 5, 4, 3, 2]),
        "few3": ours(method="topk", default=0.03, widths=["full", 8, 6, 5, 4, 3, 2]),
        "few5": ours(method="topk", default=0.05, widths=["full", 8, 6, 5, 4, 3, 2]),
        "few2r": ours(method="topk", default=0.01, ramp_up=(0.05, 90), widths=["full", 8, 6, 5, 4, 3, 2]),
        "lgreco powersgd 4": ours(method="powersgd"),
        "lgreco hybrid": ours(method="hybrid"),
    }


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, text: torch.Tensor) -> float:
    draw = torch.Generator().manual_seed(3)
    losses = [cross_entropy(model(x).flatten(0, 1), y.flatten()) for x, y in (batch(text, draw) for _ in range(40))]
    return torch.stack(losses).mean().item()


def train(rank: int, world: int, folder: str, scheme: str, steps: int, seed: int, every: int) -> None:
    torch.set_num_threads(1)
    faulthandler.enable()
    faulthandler.dump_traceback_later(HANGS, exit=True)
    os.environ["GLOO_SOCKET_IFNAME"], os.environ["OMP_NUM_THREADS"] = "lo", "1"
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    text, characters = corpus()
    split = len(text) * 9 // 10
    torch.manual_seed(seed)
    ddp = DDP(Transformer(characters))
    state = schemes()[scheme](ddp)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(10 * seed + rank)
    seconds, cpu, sent, curve = [], [], [0, 0], []
    for step in range(WARM_UP + steps):
        x, y = batch(text[:split], draw)
        dist.barrier()
        if step == WARM_UP and hasattr(state, "compression_stats"):
            sent[0] = state.compression_stats()[2]
        start, used = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        cross_entropy(ddp(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - start)
            cpu.append(time.process_time() - used)
        if rank == 0 and every and (step + 1) % every == 0:
            curve.append((step + 1, held_out_loss(ddp.module, text[split:])))
    if hasattr(state, "compression_stats"):
        sent[1] = state.compression_stats()[2]
    if rank == 0:
        parameters = sum(p.numel() for p in ddp.parameters())
        # PyTorch's hook counts elements, and those of 16 bits do not say.
        factor = 4 if scheme.startswith("powerSGD") else 1
        wide = 2 if "16" in scheme else 4
        per_step = factor * (sent[1] - sent[0]) / steps if sent[1] else wide * parameters
        result = {"seconds": seconds, "cpu": cpu, "bytes": per_step, "curve": curve or [(WARM_UP + steps, held_out_loss(ddp.module, text[split:]))]}
        pathlib.Path(folder, "result.json").write_text(json.dumps(result))
    dist.barrier()
    os._exit(0)


def run(scheme: str, world: int, steps: int, seed: int = 1, every: int = 0) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("fork")
        ranks = [context.Process(target=train, args=(rank, world, folder, scheme, steps, seed, every)) for rank in range(world)]
        for process in ranks:
            process.start()
        while any(process.is_alive() for process in ranks):
            time.sleep(0.1)
            if any(process.exitcode for process in ranks):
                for process in ranks:
                    process.kill()
                sys.exit(f"{scheme}: a rank has failed")
        return json.loads(pathlib.Path(folder, "result.json").read_text())


def shaped(rate: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds per step of each scheme, in a network namespace of its own."""
    passed = sum((["--scheme", scheme] for scheme in arguments.scheme), [])
    passed += ["--steps", str(arguments.steps), "--ranks", str(arguments.ranks)]
    shape = "" if rate == "none" else f"tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 200ms; "
    shell = f'ip link set lo up; {shape}exec "$@"'
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, __file__, "--rate", rate, *passed]
        environment = {**os.environ, "SHAPED": file.name}
        subprocess.run(["unshare", "-n", "bash", "-ec", shell, "shaped", *command], check=True, env=environment)
        return json.loads(pathlib.Path(file.name).read_text())


def measure(rate: str, arguments: argparse.Namespace) -> None:
    """Prints one rate's table, and leaves seconds per step in the file that SHAPED names."""
    print(f"\n{rate}: seconds per step (lowest, median), processor seconds per process, bytes", flush=True)
    medians = {}
    for scheme in arguments.scheme:
        result = run(scheme, arguments.ranks, arguments.steps)
        lowest, medians[scheme] = min(result["seconds"]), statistics.median(result["seconds"])
        cpu = statistics.median(result["cpu"])
        print(f"| {scheme} | {lowest:.3f} / {medians[scheme]:.3f} | {cpu:.3f} | {result['bytes']:,.0f} |", flush=True)
    pathlib.Path(os.environ["SHAPED"]).write_text(json.dumps(medians))


def learn(arguments: argparse.Namespace, seconds: dict[str, dict[str, float]]) -> None:
    """Prints what learning comes to."""
    every = max(arguments.learn // 12, 1)
    target = 0.0
    print(f"\nlearning, {arguments.seeds} seeds: bytes per step, loss at the end (and over seeds), steps to the loss, seconds", flush=True)
    for scheme in arguments.scheme:
        runs = [run(scheme, arguments.ranks, arguments.learn - WARM_UP, seed, every) for seed in range(1, arguments.seeds + 1)]
        points = zip(*(run["curve"] for run in runs))
        curve = [(at[0][0], statistics.mean(loss for _, loss in at)) for at in points]
        ends = [run["curve"][-1][1] for run in runs]
        target = target or curve[len(curve) * 3 // 4][1]
        steps = next((step for step, loss in curve if loss <= target), None)
        times = [f"{steps * of[scheme]:.1f}" if steps else "-" for of in seconds.values()]
        sent = statistics.mean(run["bytes"] for run in runs)
        spread = f"{min(ends):.3f}-{max(ends):.3f}"
        print(f"| {scheme} | {sent:,.0f} | {statistics.mean(ends):.3f} ({spread}) | {steps or 'more'} | {' | '.join(times)} |", flush=True)
    print(f"the loss is {target:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", action="append")
    parser.add_argument("--scheme", action="append", choices=list(schemes()))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learn", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    arguments.scheme = arguments.scheme or list(schemes())
    rates = arguments.rate or ["none", "1gbit", "100mbit"]
    if "SHAPED" in os.environ:
        return measure(rates[0], arguments)
    seconds = {rate: shaped(rate, arguments) for rate in rates}
    if arguments.learn:
        learn(arguments, seconds)


if __name__ == "__main__":
    main()
