"""Measures utilisation with outer steps, on a link so slow that a dense exchange takes as long as hundreds of steps."""

import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from links import join, leave
from model import Text, Transformer
from schemes import FEW_BITS
from shaped import in_namespace
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

EVERY = 30
RATIO = 8.8  # time of sending 16 bits per parameter divided by the time of a round's inner steps, as in SparseLoCo's run
RANKS = 2
TOPK: dict[str, Any] = {"method": "topk", "default": 0.01, "widths": FEW_BITS, "start_iter": 2}
BITS = 0.219  # SparseLoCo's bits per parameter and round
SCHEMES = [
    "every step, plain DDP",
    "every step, lgreco TopK 1 % in few bits",
    "every 30, dense",
    "every 30, lgreco TopK 1 % in few bits",
    f"every 30, lgreco TopK of {BITS} bits",
    f"every 30, lgreco TopK of {BITS} bits, sums as bf16",
    f"every 30, lgreco TopK of {BITS} bits, sums as bf16, 10 steps late",
]


def _made(scheme: str, model: torch.nn.Module) -> tuple[torch.nn.Module, Callable[[], Any], Callable[[], int] | None]:
    """Returns the module to train, a function to call after each inner step, and a function that returns the bytes sent
    so far."""
    from lgreco.torch import LGreCoState, OuterStep, lgreco_hook

    if scheme.startswith("every step"):
        ddp = DDP(model)
        if "lgreco" not in scheme:
            return ddp, lambda: None, None
        state = LGreCoState(None, ddp, **TOPK)
        ddp.register_comm_hook(state, lgreco_hook)
        return ddp, lambda: None, lambda: state.compression_stats()[2]
    options: dict[str, Any] = TOPK if "lgreco" in scheme else {"policy": "uncompressed"}
    if f"{BITS} bits" in scheme:
        options = {**TOPK, "default": 0.004, "budget": int(BITS * sum(p.numel() for p in model.parameters()))}
    if "bf16" in scheme:
        options["reduce_dtype"] = torch.bfloat16
    if scheme == SCHEMES[-1]:
        options["delay"] = 10
    outer = OuterStep(model, every=EVERY, **options)
    return model, outer.step, lambda: outer.compression_stats()[2]


def _rank(rank: int, folder: str, scheme: str, rounds: int, warm_up: int, rate: str, joined: Connection) -> None:
    link = leave(rank, rate, joined) if rate else "lo"
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"], os.environ["OMP_NUM_THREADS"] = link, "1"
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    text = Text()
    torch.manual_seed(1)
    model = Transformer(text.characters)
    parameters = sum(p.numel() for p in model.parameters())
    module, after, sent = _made(scheme, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(rank)
    steps = 1 if scheme.startswith("every step") else EVERY
    began, before = 0.0, 0
    for number in range((warm_up + rounds) * steps):
        if number == warm_up * steps:
            dist.barrier()
            began, before = time.perf_counter(), sent() if sent else 0
        x, y = text.batch(draw)
        optimizer.zero_grad()
        cross_entropy(module(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        after()
    seconds = (time.perf_counter() - began) / rounds
    if rank == 0:
        counted = (sent() - before) / rounds if sent else 4.0 * parameters
        pathlib.Path(folder, "result.json").write_text(json.dumps({"seconds": seconds, "bytes": counted, "parameters": parameters}))
    dist.barrier()
    os._exit(0)


def _computing(rank: int, folder: str) -> None:
    """Measures the seconds of a step without an exchange, while both ranks work."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    text = Text()
    model = Transformer(text.characters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(rank)
    seconds = []
    for _ in range(EVERY):
        start = time.perf_counter()
        x, y = text.batch(draw)
        optimizer.zero_grad()
        cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        parameters = sum(p.numel() for p in model.parameters())
        result = {"seconds": statistics.median(seconds), "parameters": parameters}
        pathlib.Path(folder, "result.json").write_text(json.dumps(result))
    dist.barrier()
    os._exit(0)


def run_outer(scheme: str, rounds: int, warm_up: int, rate: str = "", delay: float = 0.0) -> dict[str, Any]:
    """Measures seconds and bytes of a round, which has one step or thirty steps. Without a scheme, measures an inner
    step without an exchange. With a ``rate``, each rank has its own link, with a ``delay`` in seconds; otherwise ranks
    share the loopback."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("fork")
        pipes = [context.Pipe() for _ in range(RANKS)]
        of_rank = [(_rank, (rank, folder, scheme, rounds, warm_up, rate, pipes[rank][1])) if scheme else (_computing, (rank, folder)) for rank in range(RANKS)]
        ranks = [context.Process(target=target, args=arguments) for target, arguments in of_rank]
        for process in ranks:
            process.start()
        if rate:
            join([rate] * RANKS, [[ours] for ours, _ in pipes], delay)
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit(f"{scheme}: a rank has failed")
        return json.loads(pathlib.Path(folder, "result.json").read_text())


def utilisation(get: Callable[[str, Callable[[], Any]], Any], delay: float) -> str:
    """Makes a table with a line for each scheme. `get` returns the stored run of a name, or makes this run. With a
    ``delay`` in seconds, each rank has its own link."""
    alone = get("outer: a step alone", lambda: in_namespace("", {"outer": ["", 1, 0]}))
    # The rate per rank, in bits per second; both ranks share the loopback.
    rate = 16 * alone["parameters"] / (RATIO * EVERY * alone["seconds"])
    delayed = f", {delay * 1e3:g} ms" if delay else ""
    lines = [
        f"A step computes for {alone['seconds']:.3f} s; each rank's link has {rate / 1e6:.2f} Mbit/s{delayed}.",
        "",
        "| scheme | bits per parameter and round | seconds per step | utilisation |",
        "|---|--:|--:|--:|",
    ]
    for scheme in SCHEMES:
        print(f"outer: {scheme}", file=sys.stderr, flush=True)
        rounds, warm_up, steps = (2, 1, 1) if "plain" in scheme else (2, 1, EVERY) if "dense" in scheme else (4, 3, EVERY)
        if scheme == SCHEMES[1]:
            rounds, warm_up, steps = 20, 4, 1
        told = [scheme, rounds, warm_up, *([f"{rate / 1e3:.0f}kbit", delay] if delay else [])]
        shared = "" if delay else f"{RANKS * rate / 1e3:.0f}kbit"
        found = get(f"outer: {scheme}{delayed}", lambda: in_namespace(shared, {"outer": told}))
        seconds = found["seconds"] / steps
        bits = 8 * found["bytes"] / found["parameters"]
        lines.append(f"| {scheme} | {bits:.3f} | {seconds:.3f} | {100 * alone['seconds'] / seconds:.1f} % |")
    return "\n".join(lines)
