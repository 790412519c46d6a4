"""Trains with one scheme. All ranks are processes of this machine."""

import faulthandler
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from links import join, leave, sent
from model import Text, Transformer
from schemes import SCHEMES, bytes_per_step, bytes_sent
from shaped import shape
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

HANGS = 300  # a rank prints its stack and exits if a step takes longer than this many seconds
WARM_UP = 12  # steps that are not timed


def _rank(
    rank: int,
    joined: Connection | None,
    world: int,
    folder: str,
    scheme: str,
    steps: int,
    seed: int,
    every: int,
    then: str,
    small: bool,
    links: list[str],
    per_node: int,
    buckets: float | None,
) -> None:
    node = rank // per_node
    link = leave(node, links[node], joined) if joined else "lo"
    if per_node > 1:  # torchrun would set these variables
        os.environ |= {"LOCAL_WORLD_SIZE": str(per_node), "LOCAL_RANK": str(rank % per_node), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    faulthandler.enable()
    os.environ["GLOO_SOCKET_IFNAME"], os.environ["OMP_NUM_THREADS"] = link, "1"
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    text = Text()
    torch.manual_seed(seed)
    ddp = DDP(Transformer(text.characters, *((96, 2) if small else ())), bucket_cap_mb=buckets)
    parameters = sum(p.numel() for p in ddp.parameters())
    vectors = sum(p.numel() for p in ddp.parameters() if p.dim() < 2)
    state = SCHEMES[scheme](ddp)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(10 * seed + rank)
    seconds, cpu, curve, decisions = [], [], [], []
    before: int | None = 0
    through_link = 0
    for step in range(WARM_UP + steps):
        faulthandler.dump_traceback_later(HANGS, exit=True)
        x, y = text.batch(draw)
        if then and rank == 0 and step == WARM_UP + steps // 2:
            subprocess.run(shape("change", then), check=True)
        dist.barrier()
        if step == WARM_UP:
            before = bytes_sent(scheme, state, parameters)
            through_link = sent(link)
        start, used = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        cross_entropy(ddp(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - start)
            cpu.append(time.process_time() - used)
        plan = getattr(state, "plan", None)
        if plan and plan["why"] not in decisions:
            decisions.append(plan["why"])
        if every and (step + 1) % every == 0:
            loss = text.held_out_loss(ddp.module, rank, world)
            dist.all_reduce(loss)
            curve.append((step + 1, loss.item()))
    after = bytes_sent(scheme, state, parameters)
    dist.barrier()
    through_link = sent(link) - through_link
    if rank == 0:
        counted = None if after is None or before is None else (after - before) / steps
        per_step = counted or bytes_per_step(scheme, parameters)
        result = {"seconds": seconds, "cpu": cpu, "bytes": per_step, "curve": curve, "decisions": decisions}
        result["link"], result["summed"] = through_link / steps, 4 * vectors
        pathlib.Path(folder, "result.json").write_text(json.dumps(result))
    dist.barrier()
    os._exit(0)


def run(
    scheme: str,
    world: int,
    steps: int,
    seed: int = 1,
    every: int = 0,
    then: str = "",
    small: bool = False,
    links: list[str] | None = None,
    per_node: int = 1,
    delay: float = 0.0,
    buckets: float | None = None,
) -> dict[str, Any]:
    """Trains, and returns measurements of the steps.

    The result has ``seconds`` and processor seconds (``cpu``) of each step after the warm-up, ``bytes`` per step, a
    ``curve`` of (step, held-out loss), and lgreco's ``decisions`` as text. ``link`` is the number of bytes per step
    that the first node sends over its link. ``summed`` is the number of bytes of biases and normalisation parameters,
    which lgreco does not compress. If ``then`` is given, the link has this rate in the second half of the steps. With
    ``links``, each node of ``per_node`` ranks has its own link with the rate in this list, instead of the loopback.
    Frames between nodes then take ``delay`` seconds longer. DDP's buckets have ``buckets`` MB.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("fork")
        arguments = (world, folder, scheme, steps, seed, every, then, small, links or [], per_node, buckets)
        pipes = [context.Pipe() for _ in range(world if links else 0)]
        ends = [theirs for _, theirs in pipes] if links else [None] * world
        ranks = [context.Process(target=_rank, args=(rank, ends[rank], *arguments)) for rank in range(world)]
        for process in ranks:
            process.start()
        if links:
            ours = [ours for ours, _ in pipes]
            join(links, [ours[first : first + per_node] for first in range(0, world, per_node)], delay)
        while any(process.is_alive() for process in ranks):
            time.sleep(0.1)
            if any(process.exitcode for process in ranks):
                for process in ranks:
                    process.kill()
                sys.exit(f"{scheme}: a rank has failed")
        return json.loads(pathlib.Path(folder, "result.json").read_text())
