"""The trainers of examples/, started as their users do: what they train has learned, in fewer bytes."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[1]
RUNS: dict[str, tuple[int, list[str], float, float]] = {
    "char_lm.py": (2, ["LICENSE-APACHE", "--steps", "80"], 0.92, 2.0),
    "hsdp.py": (4, ["--steps", "60"], 0.5, 2.0),
    "outer.py": (2, ["--steps", "150"], 0.3, 10.0),
}
"""Processes, arguments, the most that is left of the first loss that is printed, the least ratio at the end."""


@pytest.mark.parametrize("name", RUNS)
def test_examples_learn(name: str) -> None:
    processes, arguments, most, least = RUNS[name]
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), f"examples/{name}", *arguments]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    found = subprocess.run([sys.executable, *run], cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    told = [(float(loss), float(ratio)) for loss, ratio in re.findall(r"loss ([\d.]+), .* ([\d.]+) times fewer", found.stdout)]
    assert len(told) >= 3 and told[-1][0] < most * told[0][0] and told[-1][1] > least, found.stdout


def test_every_example_is_run() -> None:
    assert RUNS.keys() == {path.name for path in FOLDER.glob("examples/*.py")}
