"""Runs each block of Python in the pages of the documentation on two ranks."""

import logging
import os
import pathlib
import re
import tempfile
import zlib
from typing import Any

import pytest
import torch
from ranks import on_ranks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import lgreco
import lgreco.torch

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "lgreco-python/README.md", *sorted((ROOT / "docs/src").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, text.index(block)) + 1}")
    for page in PAGES
    for text in [page.read_text()]
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
]
WRAPS = ["DDP(model)", "fully_shard(model)", "OuterStep(model"]
"""Code blocks that contain one of these texts get a plain model, because they wrap the model themselves."""


def _small() -> torch.nn.Sequential:
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    layers[0].requires_grad_(False)
    return layers


def _run(rank: int, block: str, folder: str) -> dict[str, Any]:
    """Runs a code block with the names that its page assumes as defined. Returns the bytes that its state has sent, and the
    settings of its plan."""
    ddp = DistributedDataParallel(_small())
    ddp(torch.ones(1, 64)).sum().backward()
    os.chdir(tempfile.mkdtemp(dir=folder))
    names: dict[str, Any] = {
        "DDP": DistributedDataParallel,
        "ExchangeError": lgreco.torch.ExchangeError,
        "LGreCoState": lgreco.torch.LGreCoState,
        "batches": [torch.ones(1, 64)] * 2,
        "ddp": ddp,
        "folder": f"{folder}/{zlib.crc32(block.encode())}",
        "fully_shard": fully_shard,
        "lgreco": lgreco,
        "logging": logging,
        "loss": ddp(torch.ones(1, 64)).sum(),
        "mine": "mine.pt",
        "model": torch.nn.Linear(64, 64) if any(words in block for words in WRAPS) else ddp,
        "register": lgreco.torch.register,
        "state": lgreco.torch.LGreCoState(None, ddp),
        "torch": torch,
    }
    exec(block, names)
    if "= register(" in block or "register_comm_hook" in block:
        names["model"](torch.ones(1, 64)).sum().backward()
        names["sent"] = names["state"].compression_stats()[2]
    return {name: names[name] for name in ["sent"] if name in names} | {
        "settings": dict(names["plan"].settings) if "plan" in names else None,
    }


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_run(block: str, tmp_path: pathlib.Path) -> None:
    if "safetensors" in block and "import" in block:
        pytest.importorskip("safetensors")
    for made in on_ranks(2, _run, block, str(tmp_path)):
        assert made.get("sent") is None or made["sent"] > 0
        if made["settings"] is not None:
            assert made["settings"]["1.weight"].startswith("topk ") and "0.weight" not in made["settings"]


def test_there_are_blocks() -> None:
    pages = {str(block.id).rpartition(":")[0] for block in BLOCKS}
    assert {"README.md", "lgreco-python/README.md", "docs/src/start/pytorch.md", "docs/src/guides/outer-steps.md"} <= pages
