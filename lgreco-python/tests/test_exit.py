"""Tests that a process may end while Gloo's threads still need the interpreter."""

import os
import subprocess
import sys

_ENDS_AT_ONCE = """
import time
import torch, torch.distributed as dist
from lgreco.torch import register

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
register(ddp)
# What threads of Gloo's go on doing when training has ended, made longer; a collective that has ended at once tells nothing.
for _ in range(4):
    dist.all_reduce(torch.ones(1 << 16), async_op=True).get_future().then(lambda _: time.sleep(0.01))
"""


def test_a_process_with_a_state_ends_when_gloo_does() -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run([sys.executable, "-c", _ENDS_AT_ONCE], env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
