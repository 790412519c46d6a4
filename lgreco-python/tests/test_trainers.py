"""Runs the trainers of examples/. The trainers' models must learn, and compression must save bytes."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import FULL
from ranks import printed_on_ranks

FOLDER = pathlib.Path(__file__).parents[1]
RUNS: dict[str, tuple[int, list[str], float, float]] = {
    "char_lm.py": (2, ["LICENSE-APACHE", "--steps", "60"], 0.92, 2.0),
    "hsdp.py": (4, ["--steps", "60"], 0.5, 2.0),
    "outer.py": (2, ["--steps", "150"], 0.3, 10.0),
}
"""For each script: the number of processes, the arguments, the largest allowed ratio of last to first loss, and the smallest
allowed compression ratio."""


def _started_by_torchrun(processes: int, path: str, *arguments: str) -> str:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), path, *arguments]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    found = subprocess.run([sys.executable, *run], env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("name", RUNS)
def test_examples_learn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each script, with LGRECO_FULL by torchrun, as users do. Most of the time is then the import of torch."""
    processes, arguments, most, least = RUNS[name]
    monkeypatch.chdir(FOLDER)
    run = [processes, f"examples/{name}", *arguments]
    printed = _started_by_torchrun(*run) if FULL else printed_on_ranks(*run)[0]  # type: ignore[arg-type]
    told = [(float(loss), float(ratio)) for loss, ratio in re.findall(r"loss ([\d.]+), .* ([\d.]+) times fewer", printed)]
    assert len(told) >= 3 and told[-1][0] < most * told[0][0] and told[-1][1] > least, printed


def test_every_example_is_run() -> None:
    assert RUNS.keys() == {path.name for path in FOLDER.glob("examples/*.py")}
