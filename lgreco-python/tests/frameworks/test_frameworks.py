"""Starts the trainers of examples/frameworks as users do, and resumes them. The models must continue to learn, and compression
must save bytes."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "examples/frameworks"
ON_TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
RUNS: dict[str, tuple[list[str], int]] = {"on_accelerate.py": (ON_TWO, 128), "on_lightning.py": ([], 128), "on_transformers.py": (ON_TWO, 60)}
"""For each script, the arguments of Python that start the script, and the number of steps before the run is resumed."""


def _run(name: str, *arguments: str) -> tuple[list[float], list[int], float]:
    """Runs a script. Returns the losses, the steps at which processes resume, and the last compression ratio."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, *RUNS[name][0], name, *arguments]
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(loss) for loss in re.findall(r"'?\bloss'?:? '?(\d+\.\d+)", done.stdout)]
    steps = [int(step) for step in re.findall(r"continues at step (\d+)", done.stdout)]
    return losses, steps, float(re.findall(r"([\d.]+) times fewer bytes", done.stdout)[-1])


@pytest.mark.parametrize("name", RUNS)
def test_a_trainer_learns_and_is_resumed(name: str, tmp_path: pathlib.Path) -> None:
    first, none, ratio = _run(name, str(tmp_path))
    assert len(first) >= 3 and first[-1] < 0.6 * first[0] and not none and ratio > 3
    second, steps, more = _run(name, str(tmp_path), "--resume")
    assert set(steps) == {RUNS[name][1]} and second[0] < 0.9 * first[-1] and second[-1] < second[0] and more > ratio


def test_every_trainer_is_run() -> None:
    assert RUNS.keys() == {path.name for path in FOLDER.glob("*.py")}
