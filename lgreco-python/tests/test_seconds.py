"""Tests plans by measured seconds. Measurements differ from run to run, but ranks must agree and no gradient may be
lost."""

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear import SHAPES, Linear, gradients, mean
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco import LgrecoError
from lgreco.torch import LGreCoState, register

STEPS = 12
OPTIONS: dict[str, Any] = {"objective": "seconds", "start_iter": 2, "period": 4, "window": 1, "min_elements": 64}


class Lines(logging.Handler):
    """The lines of lgreco's log about measured seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("lgreco").addHandler(self)
        logging.getLogger("lgreco").setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        if "exchanging took" in record.getMessage():
            self.lines.append(record.getMessage())


def _wrapped(kind: str) -> torch.nn.Module:
    if kind == "ddp":
        return DDP(Linear(), bucket_cap_mb=0.005)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if kind == "fsdp1":
        return FullyShardedDataParallel(Linear(), use_orig_params=True, device_id=torch.device("cpu"))
    return fully_shard(Linear(), mesh=mesh)


def _train(rank: int, kind: str, options: dict[str, Any]) -> tuple[list[str], dict[str, Any] | None, dict[str, str]]:
    log, module = Lines(), _wrapped(kind)
    state = register(module, **{**OPTIONS, **options})
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        module(gradients(rank, step)).backward()
        optimizer.step()
    if kind == "ddp":
        again = LGreCoState(None, module, **{**OPTIONS, **options})
        again.load_state_dict(state.state_dict())
        assert again.plan == state.plan and str(again.state_dict()) == str(state.state_dict())
        for name, p in module.module.named_parameters():  # type: ignore[union-attr]
            left = state.residual(name)
            dist.all_reduce(left)
            sent = left.reshape(SHAPES[name]) / dist.get_world_size() - p.detach()
            expected = sum(mean(dist.get_world_size(), step, name) for step in range(STEPS))
            torch.testing.assert_close(sent, expected, atol=1e-4, rtol=1e-4)
    return log.lines, state.plan, state.settings


@pytest.mark.parametrize("lead", [0, 1])
@pytest.mark.parametrize("kind", ["ddp", "fsdp1", "fsdp2"])
def test_ranks_decide_alike_and_one_of_them_says_why(kind: str, lead: int) -> None:
    options = {"method": "qsgd" if kind != "ddp" else "topk", "lead": lead}
    (lines, plan, settings), *others = on_ranks(2, _train, kind, options)
    assert plan is not None and plan["measured_seconds"] >= plan["computing_seconds"] > 0
    assert plan["uncompressed_seconds"] > 0 and plan["plan_seconds"] > 0
    assert plan["compressed_layers"] == sum(setting != "dense" for setting in settings.values())
    assert lines[-1] == plan["why"] and f" of {len(settings)} layers" in lines[-1]
    assert len(lines) == 3
    for others_lines, others_plan, others_settings in others:
        assert others_lines == [] and others_plan == plan and others_settings == settings


def test_bits_are_not_logged() -> None:
    for lines, plan, _ in on_ranks(2, _train, "ddp", {"objective": "bits", "method": "topk"}):
        assert lines == [] and plan is not None and "plan_seconds" not in plan
        assert plan["why"].startswith("step 10: ") and " bits of " in plan["why"]


def _refused(rank: int) -> None:
    ddp = DDP(Linear())
    for options, said in [({"objective": "time"}, "objective is \"time\", expected one of bits, seconds"), ({"budget": 50_000}, "budget in bits")]:
        with pytest.raises(LgrecoError, match=said):
            LGreCoState(None, ddp, **{**OPTIONS, **options})


def test_options_that_do_not_fit_are_refused() -> None:
    on_ranks(2, _refused)
