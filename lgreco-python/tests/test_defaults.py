"""Tests that torch.set_default_device and torch.set_default_dtype change nothing in lgreco."""

import ast
import pathlib
from typing import Any

import pytest
import torch
from linear import Linear, gradients
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

import lgreco
from lgreco.torch import OuterStep, register

OPTIONS: dict[str, Any] = {"start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
OUTER: dict[str, Any] = {"every": 2, "method": "topk", "default": 0.1}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", OPTIONS),
    "scatter-reduce": ("ddp", {**OPTIONS, "method": "topk", "default": 0.1, "route": "scatter_reduce"}),
    "uncompressed": ("ddp", {"policy": "uncompressed"}),
    "fsdp2": ("fsdp2", OPTIONS),
    "outer": ("outer", OUTER),
    "delayed": ("outer", {**OUTER, "delay": 1, "fragments": 2, "joined": True}),
}


def _trained(rank: int, device: str | None, dtype: torch.dtype, folder: str) -> list[torch.Tensor]:
    """Trains with each kind of state under the given defaults. Returns the parameters and a residual for each kind."""
    steps = [gradients(rank, step) for step in range(8)]
    models = {kind: Linear() for kind in KINDS}
    for kind, model in models.items():
        models[kind] = DDP(model) if KINDS[kind][0] == "ddp" else model
    fully_shard(models["fsdp2"], mesh=init_device_mesh("cpu", (2,)))
    found = []
    torch.set_default_device(device)
    torch.set_default_dtype(dtype)
    for kind, model in models.items():
        of, options = KINDS[kind]
        outer = OuterStep(model, **options) if of == "outer" else None
        state = outer or register(model, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for at, given in enumerate(steps):
            optimizer.zero_grad()
            model(given).backward()
            optimizer.step()
            if outer is not None:
                outer.step()
            if at == 5 and kind != "delayed":
                state.load_state_dict(state.state_dict())
        if outer is not None:
            outer.finish()
        state.save(f"{folder}/{kind}{device}{dtype}")
        residual = state.residual("second")
        assert state.metrics() and residual.dtype == torch.float32
        found += [residual, *(getattr(p, "_local_tensor", p).detach() for p in model.parameters())]
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    return found


def test_default_devices_and_types_change_nothing(tmp_path: pathlib.Path) -> None:
    plain = on_ranks(2, _trained, None, torch.float32, str(tmp_path))
    for device, dtype in (("meta", torch.float32), (None, torch.float64)):
        for here, there in zip(plain, on_ranks(2, _trained, device, dtype, str(tmp_path)), strict=True):
            for own, other in zip(here, there, strict=True):
                assert own.device == other.device and torch.equal(own, other)


CONSTRUCTORS = {"arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "tensor", "zeros"}


@pytest.mark.parametrize("path", sorted(path for depth in ("*.py", "*/*.py") for path in pathlib.Path(lgreco.__file__).parent.glob(depth)), ids=lambda path: path.name)
def test_every_new_tensor_has_a_given_device(path: pathlib.Path) -> None:
    """Checks the source of all modules, also of those that need a GPU, without doctests."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CONSTRUCTORS:
            is_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            assert not is_torch or "device" in {keyword.arg for keyword in node.keywords}, f"{path}:{node.lineno}"
