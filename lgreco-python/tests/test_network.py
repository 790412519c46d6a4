"""Tests the tables of tests/network with invented runs."""

import pathlib
import sys
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "network"))
from results import (  # noqa: E402
    Learnt,
    Results,
    added_table,
    learning_key,
    learning_table,
    mean_curve,
    step_key,
    steps_table,
    steps_to,
    together,
)
from names import ALONE, PLAIN  # noqa: E402
from nodes import Nodes  # noqa: E402
from schemes import SCHEMES  # noqa: E402


def test_losses_are_reached_between_points_and_kept() -> None:
    curve = [(10, 4.0), (20, 3.0), (30, 2.0), (40, 1.0)]
    assert steps_to(curve, 2.5) == 25.0 and steps_to(curve, 1.0) == 40.0 and steps_to(curve, 0.5) is None
    assert steps_to([(10, 4.0), (20, 2.0), (30, 3.0), (40, 2.0)], 2.5) == 35.0
    assert mean_curve([{"curve": [(10, 4.0), (20, 1.0)]}, {"curve": [(10, 2.0), (20, 2.0)]}]) == [(10, 3.0), (20, 1.5)]


def test_runs_are_made_once_and_times_are_steps_times_medians(tmp_path: pathlib.Path) -> None:
    made = []
    ours = next(name for name in SCHEMES if name.startswith("lgreco"))

    def steps(scheme: str) -> dict[str, Any]:
        made.append(scheme)
        each = 2.0 if scheme == PLAIN else 0.5
        return {"seconds": [each, 3 * each, each], "cpu": [0.25], "bytes": 1000 / each}

    for _ in range(2):
        results = Results(tmp_path / "runs.json")
        found = {scheme: results.get(step_key("1gbit", 2, scheme, 1), lambda: steps(scheme)) for scheme in (PLAIN, ours)}
    assert made == [PLAIN, ours] and learning_key(2, 1, 20, ours) not in results.runs
    rounds = [{"seconds": [1.0, 2.0], "cpu": [0.5], "bytes": 8}, {"seconds": [3.0], "cpu": [0.25], "bytes": 8}]
    assert together(rounds) == {"seconds": [1.0, 2.0, 3.0], "cpu": [0.5, 0.25], "bytes": 8}
    assert step_key("1gbit", 2, ours, 1) != step_key("1gbit", 2, ours, 2)
    table = steps_table(["1gbit"], [PLAIN, ours], lambda rate, scheme: found[scheme])
    assert f"| {PLAIN} | 500 | 0.250 | 2.000 / 2.000 / 6.000 |" in table
    assert f"| {ours} | 2,000 | 0.250 | 0.500 / 0.500 / 1.500 |" in table
    table = added_table(["1gbit"], [ours], lambda rate, scheme: {ALONE: {"seconds": [0.25]}}.get(scheme, found[ours]))
    assert f"| {ours} | 0.250 |" in table

    def runs(*curves: list[tuple[int, float]], each: float = 9.0) -> list[dict[str, Any]]:
        return [{"curve": curve, "seconds": [each]} for curve in curves]

    rates, seconds = ["1gbit", "100mbit"], "lgreco, seconds"
    of_ours = runs([(10, 3.5), (20, 2.61), (30, 1.61)], [(10, 3.5), (20, 2.41), (30, 1.41)])
    learnt = [
        Learnt(scheme, dict(zip(rates, by_rate)), lambda rate, scheme: found.get(scheme, found[ours]))
        for scheme, by_rate in {
            PLAIN: [runs([(10, 3.0), (20, 2.0)])] * 2,
            ours: [of_ours] * 2,
            seconds: [runs([(10, 3.0), (20, 1.01)], each=1.0), runs([(10, 3.01), (20, 2.01), (30, 1.0)], each=4.0)],
            "never": [runs([(10, 3.5), (20, 3.0), (30, 2.5)])] * 2,
        }.items()
    ]
    table = learning_table(rates, learnt)
    assert "The loss to be reached is 2.010" in table
    assert f"| {PLAIN} | 2.000 (2.000 to 2.000) | 20 (20 to 20) | 39.8 s | 39.8 s |" in table, table
    assert f"| {ours} | 2.510 (2.410 to 2.610) | 25 (24 to 26) | 12.5 s | 12.5 s |" in table, table
    # Training times follow from the scheme's seconds per step at each network rate.
    assert f"| {seconds} | 1.510 (1.010 to 2.010) | 15 to 20 (15 to 20) | 15.0 s | 80.0 s |" in table, table
    assert "| never | 3.000 (3.000 to 3.000) | more than 30 (more than 30 to more than 30) | more than 15.0 s |" in table, table
    with pytest.raises(KeyError):
        steps_table(["1gbit"], ["none such"], lambda rate, scheme: found[scheme])


def test_bytes_that_leave_a_node_in_theory() -> None:
    # Each of eight ranks sends 100 bytes. A ring sums 8 of these bytes, for which 2 * 7 / 8 * 8 bytes leave a node.
    assert Nodes(2, 4).in_theory("lgreco EDEN 3, flat", 100, 8) == 7 * 92 + 14
    assert Nodes(2, 4).in_theory("lgreco EDEN 3, two-level", 25, 2) == 4 * 25
    assert Nodes(4, 2).in_theory("lgreco EDEN 3, two-level", 50, 4) == 2 / 4 * 3 * 2 * 50
    assert Nodes(2, 4).in_theory(PLAIN, 400, 8) == 2 * 7 / 8 * 400
