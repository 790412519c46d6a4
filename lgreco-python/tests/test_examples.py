"""Runs the examples in the docstrings of lgreco.torch on two ranks, one module after another."""

import doctest
import importlib
import importlib.metadata
import pkgutil
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lgreco.torch

MODULES = ["lgreco.torch", *(f"lgreco.torch.{module.name}" for module in pkgutil.iter_modules(lgreco.torch.__path__))]
WITHOUT = {
    "backward", "cuda", "device", "device_exchange", "effects", "exchange", "finalization", "fragment", "groups", "layers", "loads", "node_bucket",
    "node_buckets", "node_exchange", "nodes", "observed", "options", "outer_options", "planning", "reports", "route", "scale", "step", "step_state",
    "times", "training",
}  # fmt: skip
"""Internal modules, which have no examples."""


def _examples(rank: int, name: str) -> tuple[int, int]:
    names: dict[str, Any] = {"torch": torch, "dist": dist, "fully_shard": fully_shard, "init_device_mesh": init_device_mesh}
    names.update(lgreco_hook=lgreco.torch.lgreco_hook, LGreCoState=lgreco.torch.LGreCoState)
    dist.barrier()  # Otherwise ranks without examples could end before the others are connected.
    results = doctest.testmod(importlib.import_module(name), extraglobs=names)
    return results.failed, results.attempted


@pytest.mark.parametrize("name", MODULES)
def test_examples_do_what_they_show(name: str) -> None:
    for failed, tried in on_ranks(2, _examples, name):
        assert failed == 0
        assert (tried == 0) == (name.rpartition(".")[2] in WITHOUT)


def _described(rank: int, text: str) -> tuple[float, int, int]:
    layers = torch.nn.Linear(64, 64)
    names: dict[str, Any] = {"model": layers, "DDP": torch.nn.parallel.DistributedDataParallel}
    exec(text, names)
    names["model"](torch.ones(1, 64)).sum().backward()
    stats: tuple[float, int, int] = names["state"].compression_stats()
    return stats


def test_the_package_indexs_page_needs_no_repository() -> None:
    """The package index's page has no relative links, and the page's code can train."""
    page = importlib.metadata.metadata("lgreco").get_payload()  # type: ignore[attr-defined]
    assert isinstance(page, str) and page.startswith("# lgreco")
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]*)\)", page)) and "src=" not in page
    (text,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for ratio, _, sent in on_ranks(2, _described, text):
        assert ratio == 1.0 and sent > 0
