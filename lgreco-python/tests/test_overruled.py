"""Options that are given at resume take precedence over the decisions of the saved run."""

from typing import Any

import pytest
import torch
from linear import SHAPES, Linear, gradients
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import OuterStep, register
from lgreco.torch.options import deciding

OPTIONS: dict[str, Any] = {"start_iter": 2, "period": 50, "window": 1, "min_elements": 64}
UNIFORM: dict[str, Any] = {"method": "topk", "default": 0.1, "policy": "uniform", **OPTIONS}
FIXED: dict[str, Any] = {"settings": {"second": "qsgd 4"}, "start_iter": 2}
PLANNED: dict[str, Any] = {"method": "topk", "default": 0.1, **OPTIONS}

CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = [
    (UNIFORM, FIXED, {"first": "dense", "second": "qsgd 4", "third": "dense"}),
    (UNIFORM, {**UNIFORM, "default": 0.2}, {"first": "topk 384", "second": "topk 512", "third": "topk 410"}),
    (UNIFORM, {**UNIFORM, "method": "qsgd", "default": 4}, dict.fromkeys(("first", "second", "third"), "qsgd 4")),
    (UNIFORM, {**UNIFORM, "min_elements": 2500}, {"first": "dense", "second": "topk 256", "third": "dense"}),
    (FIXED, {**FIXED, "settings": {"first": "topk 9"}}, {"first": "topk 9", "second": "dense", "third": "dense"}),
    (FIXED, UNIFORM, {"first": "topk 192", "second": "topk 256", "third": "topk 205"}),
    (PLANNED, UNIFORM, {"first": "topk 192", "second": "topk 256", "third": "topk 205"}),
    (PLANNED, FIXED, {"first": "dense", "second": "qsgd 4", "third": "dense"}),
    (PLANNED, {**PLANNED, "method": "qsgd", "default": 8}, dict.fromkeys(("first", "second", "third"), "qsgd 8")),
    (UNIFORM, {"policy": "uncompressed"}, dict.fromkeys(("first", "second", "third"), "dense")),
]


def _continued(rank: int, sharded: bool, stop: int) -> list[tuple[dict[str, str], dict[str, str]]]:
    found = []
    for before, after, _ in CASES:
        def wrapped() -> torch.nn.Module:
            return fully_shard(Linear(), mesh=init_device_mesh("cpu", (2,))) if sharded else DDP(Linear())

        module = wrapped()
        state = register(module, **before)
        for at in range(stop):
            module(gradients(rank, at)).backward()
        saved, module = state.state_dict(), wrapped()
        state = register(module, **after)
        state.load_state_dict(saved)
        for at in range(stop, stop + 3):
            module(gradients(rank, at)).backward()
        again, module = state.state_dict(), wrapped()
        state = register(module, **after)
        state.load_state_dict(again)
        settings = state.settings
        module(gradients(rank, stop + 3)).backward()
        found.append((settings, state.settings))
    return found


@pytest.mark.parametrize(("sharded", "stop"), [(False, 5), (True, 5), (False, 1)])
def test_options_of_now_win(sharded: bool, stop: int) -> None:
    for found in on_ranks(2, _continued, sharded, stop):
        for (before, after, expected), settings in zip(CASES, found, strict=True):
            if after.get("method") == "qsgd" and "policy" not in after:
                # A plan has chosen these settings, all of the method qsgd except for the bias.
                assert all(setting.startswith("qsgd") for name, setting in settings[0].items() if name != "bias"), (before, after)
            elif not (sharded and after.get("policy") == "uncompressed"):
                assert {name: settings[0][name] for name in expected} == expected, (before, after)
            assert settings[0] == settings[1] and settings[0].keys() == SHAPES.keys()


def _outer(rank: int) -> dict[str, str]:
    model = Linear()
    outer = OuterStep(model, every=1, method="topk", default=0.1, policy="uniform", min_elements=64)
    for _ in range(4):
        outer.step()
    saved = outer.state_dict()
    outer = OuterStep(model, every=1, settings={"second": "qsgd 4"})
    outer.load_state_dict(saved)
    for _ in range(3):
        outer.step()
    return outer.settings


def test_options_of_now_win_in_outer_steps() -> None:
    for settings in on_ranks(2, _outer):
        assert settings == {"first": "dense", "bias": "dense", "second": "qsgd 4", "third": "dense"}


def test_a_budget_that_is_no_default_of_the_paper_decides() -> None:
    assert deciding({"policy": "paper", "budget": "size"}) != deciding({"policy": "paper"})
    assert deciding({"budget": "size"}) == deciding({})
