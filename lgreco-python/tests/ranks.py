"""Runs a function or a program on several ranks, with one process per rank.

The processes are forked from the test process, which has imported torch: the import takes six seconds of processor time.
"""

import contextlib
import gc
import io
import os
import runpy
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch._dynamo  # DDP imports it in its first step. Forked processes have it already.
import torch.distributed as dist
import torch.multiprocessing as mp

gc.freeze()  # A process that collects garbage would copy the pages of all objects that this one has.

TIMEOUT = timedelta(seconds=60)


def _in_group(rank: int, world: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world, timeout=TIMEOUT)
    result = work(rank, *arguments)
    dist.destroy_process_group()
    return result


def _program(rank: int, world: int, port: int, path: str, arguments: list[str]) -> str:
    """Runs a program in the environment of torchrun, and returns the program's output. The program makes its own group."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = [path, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()


HANGS = 600
"""Seconds after which a rank that still runs is treated as hanging. On a busy machine the slowest test takes two minutes."""


def _main(rank: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        torch.save(work(rank, *arguments), f"{folder}/{rank}.pt")
    except BaseException:
        print(f"rank {rank}:\n{traceback.format_exc()}", flush=True)
        os._exit(1)
    # Without _exit, threads of a failed backward pass would keep the interpreter from exiting.
    os._exit(0)


def _forked(world: int, folder: str, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    context = mp.get_context("fork")
    ranks = [context.Process(target=_main, args=(rank, folder, work, arguments)) for rank in range(world)]
    for process in ranks:
        process.start()
    until = time.monotonic() + HANGS
    for process in ranks:
        process.join(max(0.0, until - time.monotonic()))
    hang = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for process in ranks:
        process.kill()
    assert not hang, f"ranks {hang} hang"
    assert all(process.exitcode == 0 for process in ranks), "a rank has failed"
    return [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(world)]


def on_ranks(world: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Runs ``work(rank, *arguments)`` on each rank of a Gloo group, and returns the results. Fails if one rank fails."""
    with tempfile.TemporaryDirectory() as folder:
        return _forked(world, folder, _in_group, world, folder, work, arguments)


def printed_on_ranks(world: int, path: str, *arguments: str) -> list[str]:
    """Starts a program on each rank as torchrun does, and returns the outputs. Fails if one rank fails."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        return _forked(world, folder, _program, world, port, path, list(arguments))
