"""Compares compressed reduce-scatters in a GPU's memory, on an imitated driver, with the exchange on the host."""

import logging
from typing import Any

import pytest
import torch
from imitation import imitated
from ranks import on_ranks
from test_device import stayed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard

from lgreco import LgrecoError
from lgreco.torch import LGreCoFSDP1State, LGreCoShardedState

STEPS = 12
ON_DEVICE: dict[str, Any] = {"_device_of": imitated}
PLANNED: dict[str, Any] = {"start_iter": 2, "period": 4, "window": 1, "min_elements": 64}
SCHEMES: dict[str, dict[str, Any]] = {
    "qsgd": PLANNED | {"method": "qsgd"},
    "eden": PLANNED | {"method": "eden"},
    "topk": PLANNED | {"method": "topk", "default": 0.1},
    "qsgd in bfloat16": PLANNED | {"method": "qsgd"},
    "topk in bfloat16": PLANNED | {"method": "topk", "default": 0.1},
    "few bits": {"start_iter": 2, "settings": {"0.0.weight": "topk 90 bits 3", "1.0.weight": "qsgd 4"}},
    "uncompressed": {"settings": {}},
}

Run = tuple[list[torch.Tensor], torch.Tensor, dict[str, str], int, bool]


def _parts() -> torch.nn.Sequential:
    torch.manual_seed(0)
    # With three ranks, the last rank has shorter shards or no shards.
    return torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Tanh()) for _ in range(3)])


def _steps(model: torch.nn.Module, state: Any, rank: int, local: Any) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    means = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(8, 40, generator=generator)
        (model(x) - x.flip(1)).square().mean().backward()
        means.append(torch.cat([local(p.grad).flatten().clone() for p in model.parameters() if p.grad is not None]))
        optimizer.step()
    residuals = torch.cat([state.residual(name) for name in state.names])
    return means, residuals, state.settings, state.compression_stats()[2], stayed(state)


def _fsdp2(rank: int, options: dict[str, Any], dtype: torch.dtype, where: dict[str, Any]) -> Run:
    """Returns the gradients of this rank's shards after each step, the residuals, and further results to compare."""
    model = _parts()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for part in (*model, model):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
    state = LGreCoShardedState(model, **options, **where)
    return _steps(model, state, rank, lambda gradient: gradient.to_local())


def _fsdp1(rank: int, options: dict[str, Any], dtype: torch.dtype, where: dict[str, Any]) -> Run:
    policy = MixedPrecision(reduce_dtype=dtype)
    parts = [FullyShardedDataParallel(part, device_id=torch.device("cpu"), mixed_precision=policy) for part in _parts()]
    model = FullyShardedDataParallel(torch.nn.Sequential(*parts), device_id=torch.device("cpu"), mixed_precision=policy)
    return _steps(model, LGreCoFSDP1State(model, **options, **where), rank, lambda gradient: gradient)


def _both(rank: int, train: Any, options: dict[str, Any], dtype: torch.dtype) -> tuple[Run, Run]:
    return train(rank, options, dtype, {}), train(rank, options, dtype, ON_DEVICE)


@pytest.mark.parametrize("train", [_fsdp2, _fsdp1], ids=["fully_shard", "FSDP1"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_shards_are_those_of_the_host(scheme: str, train: Any) -> None:
    dtype = torch.bfloat16 if scheme.endswith("bfloat16") else torch.float32
    for host, device in on_ranks(3, _both, train, SCHEMES[scheme], dtype):
        assert device[4] and not host[4] and device[2:4] == host[2:4]
        assert any(setting != "dense" for setting in device[2].values()) == (scheme != "uncompressed")
        assert all(torch.equal(found, expected) for found, expected in zip(device[0], host[0], strict=True))
        assert torch.equal(device[1], host[1])


def _told() -> list[str]:
    """Collects all log messages from now on."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lgreco").addHandler(handler)
    return told


def _powersgd(rank: int) -> tuple[Run, Run, list[str]]:
    options = {"start_iter": 2, "settings": {"0.0.weight": "powersgd 2"}}
    host, told = _fsdp2(rank, options, torch.float32, {}), _told()
    return host, _fsdp2(rank, options, torch.float32, ON_DEVICE), told


def test_buckets_for_which_there_are_no_kernels_go_by_the_host_and_say_so() -> None:
    for host, device, told in on_ranks(2, _powersgd):
        assert all(torch.equal(found, expected) for found, expected in zip(device[0], host[0], strict=True))
        assert device[2] == host[2] and not device[4]
        assert len(told) == 1 and "is copied to the host" in told[0] and "PowerSGD" in told[0]


class _Shards:
    """A weight with given gradients, sharded over two ranks by rows."""

    def __init__(self, setting: str) -> None:
        self.module = fully_shard(torch.nn.Linear(64, 64, bias=False), mesh=init_device_mesh("cpu", (2,)))
        options: dict[str, Any] = {"start_iter": 2, "settings": {"weight": setting}}
        self.state = LGreCoShardedState(self.module, **options, **ON_DEVICE)  # type: ignore[arg-type]

    def step(self, largest: float = 1.0, row: int = 0) -> torch.Tensor:
        """Trains one step. The gradients of all ranks are ones, except in one row."""
        self.module.zero_grad()
        x = torch.ones(1, 64)
        of_rows = torch.ones(64)
        of_rows[row] = largest
        (self.module(x) * of_rows).sum().backward()
        gradient: Any = self.module.weight.grad
        return gradient.to_local().clone()


def _alone(rank: int, setting: str) -> tuple[list[bool], list[str], torch.Tensor]:
    """In rank 1's shard, the sum of the two ranks' gradients exceeds float32."""
    shards = _Shards(setting)
    sound = [all(bool((shards.step() == 1).all()) for _ in range(3))]
    before = shards.state.residual("weight")
    means = shards.step(3e38, 40)
    sound.append(bool((means == 1).all()))
    assert torch.equal(shards.state.residual("weight"), before)
    # Rank 1 reports the overflow in the next step, which then fails on both ranks.
    told = []
    for _ in range(3):
        try:
            sound.append(bool((shards.step() == 1).all()))
        except LgrecoError as error:
            told.append(f"{error}")
    return sound, told, shards.step()


def test_what_a_rank_finds_alone_in_its_shard_all_ranks_hear_of() -> None:
    (first, others, means), (second, own, of_second) = on_ranks(2, _alone, "qsgd 8")
    assert (first, second) == ([True, True, False, True], [True, False, False, True])
    assert len(own) == len(others) == 1 and own[0].startswith("weight: element 2560") and "rank 1" in others[0]
    assert bool((means == 1).all()) and bool((of_second == 1).all())


def test_sums_of_uncompressed_shards_beyond_float32_have_their_mean() -> None:
    (first, others, _), (second, own, _) = on_ranks(2, _alone, "dense")
    assert (first, second) == ([True] * 5, [True, False, True, True, True]) and not own and not others
