"""Runs a function on several ranks of a Gloo group, a process each."""

import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch._dynamo  # What DDP imports in its first step: here, every process has it already.
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = timedelta(seconds=60)


def _main(rank: int, world: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world, timeout=TIMEOUT)
        result = work(rank, *arguments)
        torch.save(result, f"{folder}/{rank}.pt")
        dist.destroy_process_group()
    except BaseException:
        print(f"rank {rank}:\n{traceback.format_exc()}", flush=True)
        os._exit(1)
    # Threads of a backward pass that has failed would keep the interpreter.
    os._exit(0)


def on_ranks(world: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``work(rank, *arguments)`` returns on each rank; fails when one fails."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("fork")
        ranks = [context.Process(target=_main, args=(rank, world, folder, work, arguments)) for rank in range(world)]
        for process in ranks:
            process.start()
        until = time.monotonic() + 120
        for process in ranks:
            process.join(max(0.0, until - time.monotonic()))
        hang = [rank for rank, process in enumerate(ranks) if process.is_alive()]
        for process in ranks:
            process.kill()
        assert not hang, f"ranks {hang} hang"
        assert all(process.exitcode == 0 for process in ranks), "a rank has failed"
        return [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(world)]
