"""Ranks that die or stop: the others hear of it, and do not wait for ever."""

import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch.multiprocessing as mp
from linear import Linear, gradients
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import LGreCoState, lgreco_hook

TIMEOUT = 15


def _main(rank: int, store: str, method: str, fails: str, told: Any) -> None:
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=3, timeout=timedelta(seconds=TIMEOUT))
    ddp = DDP(Linear(), bucket_cap_mb=0.005)
    ddp.register_comm_hook(LGreCoState(None, ddp, method=method, start_iter=2), lgreco_hook)
    for step in range(6):
        if step == 4 and rank == 1:
            if fails == "dies":
                os._exit(9)
            time.sleep(600)
        try:
            ddp(gradients(rank, step)).backward()
        except RuntimeError as error:
            told.put((rank, step, str(error)))
            told.close()
            told.join_thread()
            os._exit(0)
    os._exit(1)


@pytest.mark.parametrize("fails", ["dies", "stops"])
@pytest.mark.parametrize("method", ["topk", "powersgd"])
def test_nobody_waits_for_ever(tmp_path: Any, method: str, fails: str) -> None:
    context = mp.get_context("fork")
    told = context.Queue()
    ranks = [context.Process(target=_main, args=(r, f"{tmp_path}/store", method, fails, told)) for r in range(3)]
    for process in ranks:
        process.start()
    heard = sorted(told.get(timeout=100) for _ in (0, 2))
    for process in ranks:
        process.kill()
    assert [(rank, step) for rank, step, _ in heard] == [(0, 4), (2, 4)]
