"""Tests runs in which ranks die or stop, or links are cut. The other ranks get an error, and lose no more than necessary."""

import dataclasses
import os
import pathlib
import shlex
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "network"))
from faults import VICTIM, Case, faults_table, outcome  # noqa: E402
from shaped import in_namespace, shape  # noqa: E402

SMALL = Case("", width=32, layers=1, timeout=10.0, steps=12, every=4, at=10)
LINK = ["unshare", "-n", "bash", "-ec", "ip link set lo up; " + shlex.join(shape("add", SMALL.rate))]
SHAPED = subprocess.run(LINK, capture_output=True).returncode == 0
REQUIRED = "python" in os.environ.get("LGRECO_REQUIRE", "").split(",")  # then the test fails without such a link


@pytest.mark.parametrize(
    "case",
    [
        dataclasses.replace(SMALL, scheme="lgreco TopK 1 %", kind="killed"),
        dataclasses.replace(SMALL, scheme="lgreco PowerSGD 4", kind="stopped", seconds=22.0, world=2),
        pytest.param(
            # A step sends more bytes than a cut link transmits within the timeout.
            dataclasses.replace(SMALL, scheme="lgreco TopK 5 % in few bits", kind="cut", seconds=22.0, world=2, width=64),
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(
                    not SHAPED and not REQUIRED, reason="no network namespace with a slow link: no root, or no iproute2"
                ),
            ],
        ),
    ],
    ids=lambda case: f"{case.scheme} {case.kind} {case.seconds:g}",
)
def test_others_hear_of_it_and_go_on(case: Case) -> None:
    found = outcome(case) if case.kind != "cut" else in_namespace(case.rate, {"case": dataclasses.asdict(case)})
    assert found["same_bits"], found
    heard = {one["rank"]: one for one in found["heard"]}
    assert "OTHER" not in (table := faults_table([found])) and "NO" not in table, table
    if not case.errs:
        assert not heard
        return
    assert heard.keys() == set(range(case.world)) - ({VICTIM} if case.kind == "killed" else set())
    for rank, one in heard.items():
        assert one["step"] == case.at and f"rank {rank}, step {case.at}: a collective has failed" in one["error"]
    assert found["kept"]
    if case.kind == "killed":
        assert found["replaced"] and found["lost"] == [8, 10]
