"""Faults in the middle of a step: a rank is killed, a rank stops, or a link is cut."""

import dataclasses
import hashlib
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from model import Text, Transformer
from schemes import SCHEMES
from shaped import shape
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

VICTIM = 1
BUCKET = 2  # the fault happens before the exchange of this bucket of the step, counted from 1
CUT = shape("change", "1kbit", "2kb")


@dataclasses.dataclass(frozen=True)
class Case:
    """A run with a fault."""

    scheme: str
    kind: str = ""
    """The kind of fault: killed, stopped or cut. Empty for no fault."""
    seconds: float = 0.0
    """How long the rank is stopped or the link is cut."""
    world: int = 3
    timeout: float = 8.0
    """Timeout of the process group in seconds."""
    rate: str = "100mbit"
    """Rate of a cut link after the cut."""
    width: int = 128
    layers: int = 4
    steps: int = 24
    every: int = 8
    """Number of steps between saved states."""
    at: int = 19
    """The step of the fault."""

    @property
    def errs(self) -> bool:
        """Whether the fault is an error for the ranks."""
        return self.kind == "killed" or self.seconds > self.timeout


# Some of these faults are shorter than the timeout, and some are longer.
FAULTS = [Case("", "killed")] + [Case("", kind, seconds) for kind in ("stopped", "cut") for seconds in (3.0, 20.0)]


def digest(tensors: Any) -> str:
    """A hash of the tensors' bytes."""
    seen = hashlib.sha256()
    for tensor in tensors:
        seen.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()


def _happen(case: Case) -> None:
    """Called in the process of the rank with the fault: kills or stops this process, or cuts the link."""
    if case.kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif case.kind == "stopped":
        subprocess.Popen(["sh", "-c", f"sleep {case.seconds}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        subprocess.run(CUT, check=True)
        subprocess.Popen(["sh", "-c", f"sleep {case.seconds}; {shlex.join(shape('change', case.rate))}"])


def _rank(rank: int, case: Case, folder: str, run: str, plan: str, residual: str) -> None:
    from lgreco.torch import ExchangeError

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"], os.environ["OMP_NUM_THREADS"] = "lo", "1"
    store, timeout = f"file://{folder}/{run}", timedelta(seconds=case.timeout)
    dist.init_process_group("gloo", store, rank=rank, world_size=case.world, timeout=timeout)
    text = Text()
    torch.manual_seed(1)
    ddp = DDP(Transformer(text.characters, case.width, case.layers), bucket_cap_mb=0.002 * case.width)
    state = SCHEMES[case.scheme](ddp)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(rank)
    first, step = 0, -1
    told: dict[str, Any] = {}
    buckets, since = [0], 0.0
    exchange = state.exchange

    def disturbed(bucket: Any) -> Any:
        buckets[0] += 1
        if (rank, step, buckets[0], bool(case.kind)) == (VICTIM, case.at, BUCKET, not plan):
            _happen(case)
        return exchange(bucket)

    # The state gets this hook before its first bucket, because another kind of hook would be an error later.
    state.exchange = disturbed
    if plan:
        # DDP rebuilds its buckets after the first backward pass. With more than two ranks, the buckets determine the
        # order of sums.
        x, y = text.batch(draw)
        cross_entropy(ddp(x).flatten(0, 1), y.flatten()).backward()
        saved = torch.load(f"{folder}/{plan}", weights_only=True)
        own = torch.load(f"{folder}/{residual}", weights_only=True)
        ddp.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        draw.set_state(own["draw"])
        loaded = state.load_state_dict(saved["lgreco"], [own["lgreco"]])
        first, told["loaded"] = saved["step"], (loaded.step, loaded.oldest_residual)

    def save(name: str, step: int) -> None:
        parts = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "lgreco": state.state_dict()}
        torch.save({**parts, "draw": draw.get_state(), "step": step}, f"{folder}/{name}")

    def residuals() -> str:
        return digest(state.residual(name) for name in state.names)

    for step in range(first, case.steps):
        if step % case.every == 0 and not plan:
            save(f"{step}.{rank}.pt", step)
        drawn, before, buckets[0], since = draw.get_state(), residuals(), 0, time.monotonic()
        x, y = text.batch(draw)
        optimizer.zero_grad()
        try:
            cross_entropy(ddp(x).flatten(0, 1), y.flatten()).backward()
        except ExchangeError as error:
            seconds = time.monotonic() - since
            told |= {"rank": rank, "step": step, "seconds": seconds, "error": str(error), "kept": residuals() == before}
            draw.set_state(drawn)
            save(f"fault.{rank}.pt", step)
            break
        optimizer.step()
    told |= {"parameters": digest(ddp.parameters()), "residuals": residuals()}
    torch.save(told, f"{folder}/{run}.{rank}.pt")
    # Threads of a failed backward pass would keep the interpreter alive, and other ranks may still need this rank's
    # messages.
    time.sleep(1.0)
    os._exit(0)


def _launch(case: Case, folder: str, run: str, states: list[tuple[str, str]] | None = None) -> list[dict[str, Any]]:
    """Runs all ranks and returns their outcomes, with ``{}`` for a killed rank. With ``states``, each rank continues
    from two files: one with the saved plan, one with the saved residuals."""
    context = mp.get_context("fork")
    started = states or [("", "")] * case.world
    ranks = [context.Process(target=_rank, args=(r, case, folder, run, *states)) for r, states in enumerate(started)]
    for process in ranks:
        process.start()
    until = time.monotonic() + 60 + 4 * case.timeout + case.seconds
    for process in ranks:
        process.join(max(0.0, until - time.monotonic()))
    hang = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for process in ranks:
        process.kill()
    if hang:
        sys.exit(f"{case}: ranks {hang} hang")
    found = [pathlib.Path(folder, f"{run}.{rank}.pt") for rank in range(case.world)]
    return [torch.load(path, weights_only=True) if path.exists() else {} for path in found]


def outcome(case: Case) -> dict[str, Any]:
    """Runs a case. Returns the errors that the other ranks get, and how the run continues.

    ``heard`` lists each rank's error and the ``seconds`` until the error. ``kept`` is whether all residuals are as
    before the step. ``same_bits`` is whether the final bits equal the bits of a run without a fault. After an error,
    the run continues from the last saved states. If a rank was killed, ``replaced`` is whether the other ranks can
    continue from their present states with a new rank. The new rank loads the killed rank's last saved state. ``lost``
    is a range of steps: the new rank's residual lacks the compression errors of these steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        straight = _launch(dataclasses.replace(case, kind=""), folder, "straight")
        disturbed = _launch(case, folder, "disturbed")
        keys = ("rank", "step", "seconds", "error")
        heard = [{key: one[key] for key in keys} for one in disturbed if "error" in one]
        result: dict[str, Any] = {**dataclasses.asdict(case), "heard": heard}
        if not heard and case.kind != "killed":
            return {**result, "same_bits": disturbed == straight}
        result["kept"] = all(one["kept"] for one in disturbed if one)
        last = case.at // case.every * case.every
        resumed = _launch(case, folder, "resumed", [(f"{last}.{r}.pt", f"{last}.{r}.pt") for r in range(case.world)])
        ends = ("parameters", "residuals")
        result["same_bits"] = [[one[end] for end in ends] for one in resumed] == [[one[end] for end in ends] for one in straight]
        if case.kind == "killed":
            own = [f"{last}.{r}.pt" if r == VICTIM else f"fault.{r}.pt" for r in range(case.world)]
            replaced = _launch(case, folder, "replaced", [("fault.0.pt", state) for state in own])
            told = [one["loaded"] for one in replaced]
            expected = [(case.at, last if r == VICTIM else case.at) for r in range(case.world)]
            result["replaced"] = told == expected and len({one["parameters"] for one in replaced}) == 1
            result["lost"] = [min(oldest for _, oldest in told), case.at]
        return result


def faults_table(outcomes: list[dict[str, Any]]) -> str:
    """Makes a table with a line for each case."""
    lines = [
        "| scheme | fault | error | heard after | residuals kept | end of the run | a killed rank replaced |",
        "|---|---|---|--:|---|---|---|",
    ]
    for one in outcomes:
        fault = one["kind"] + (f" for {one['seconds']:g} s" if one["seconds"] else "")
        heard, kept = one["heard"], one.get("kept")
        error = f"on {len(heard)} of {one['world']} ranks" if heard else "none"
        others = [h["seconds"] for h in heard if h["rank"] != VICTIM or one["kind"] == "cut"]
        after = f"{max(others):.1f} s" if heard else ""
        end = ("same bits" if one["same_bits"] else "OTHER BITS") + (" from saved states" if heard else "")
        if "replaced" in one:
            replaced = f"without what it had not sent of steps {one['lost'][0]} to {one['lost'][1]}" if one["replaced"] else "NO"
        else:
            replaced = ""
        known = {True: "yes", False: "NO", None: ""}[kept]
        lines.append(f"| {one['scheme']} | {fault} | {error} | {after} | {known} | {end} | {replaced} |")
    return "\n".join(lines)
