"""Tests several threads of one process. Without a GIL they run at the same time."""

import os
import pathlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from ranks import on_ranks
from test_training import make, train
from torch.nn.parallel import DistributedDataParallel

import lgreco
from lgreco.torch import LGreCoState, lgreco_hook


def _gradients(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"fc{layer}": torch.randn(96, 80, generator=generator) ** 3 for layer in range(4)}


def test_plans_on_several_threads_are_those_of_one() -> None:
    def plan(seed: int) -> tuple[dict[str, str], float]:
        made = lgreco.plan(_gradients(seed), method="hybrid")
        return made.settings, made.error

    alone = [plan(seed) for seed in range(12)]
    assert len({error for _, error in alone}) == 12
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(plan, range(12))) == alone


def _seconds_of(name: str) -> tuple[int, float]:
    """Counts the threads of this process whose names begin with ``name``. Returns their number and their seconds of processor
    time."""
    count, seconds = 0, 0.0
    for thread in pathlib.Path("/proc/self/task").iterdir():
        try:
            comm, schedstat = (thread / "comm").read_text(), (thread / "schedstat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread of the plan has ended since it was listed
        if comm.startswith(name):
            count, seconds = count + 1, seconds + 1e-9 * int(schedstat.split()[0])
    return count, seconds


def _planned(rank: int) -> tuple[int, float, float]:
    """Makes a plan. Returns the number of threads for steps, the seconds that these threads work during the plan, and the
    seconds of all threads."""
    os.environ["RAYON_NUM_THREADS"] = "2"
    options: dict[str, Any] = {"method": "topk", "default": 0.1, "start_iter": 2, "period": 4, "window": 1, "lead": 1}
    ddp = DistributedDataParallel(torch.nn.Linear(1024, 512))
    state = LGreCoState(None, ddp, **options)
    ddp.register_comm_hook(state, lgreco_hook)
    tasks: list[Any] = []
    state._planning.begin = lambda controller: tasks.append(controller.take_plan_task())  # type: ignore[method-assign]
    while not any(tasks):
        ddp(torch.randn(4, 1024)).square().mean().backward()
    (task,) = filter(None, tasks)
    (count, before), all_before = _seconds_of("lgreco-step"), time.process_time()
    task.run()
    return count, _seconds_of("lgreco-step")[1] - before, time.process_time() - all_before


@pytest.mark.skipif(not pathlib.Path("/proc/self/schedstat").exists(), reason="the system does not tell the time of a thread")
def test_plans_are_made_on_threads_of_their_own() -> None:
    for count, of_steps, of_all in on_ranks(1, _planned):
        assert count == 2 and of_all > 0.005 and of_steps < 0.1 * of_all


def _watched(rank: int, is_watched: bool) -> tuple[torch.Tensor, int]:
    """Trains while other threads read the state as a display would. Returns the parameters and the number of reads."""
    ddp, state = make(method="topk", default=0.1, start_iter=2, period=4)
    told, done, wrong = [0], threading.Event(), []

    def watch() -> None:
        while not done.is_set():
            try:
                assert state.settings.keys() == set(state.names)
                assert state.plan is None or state.plan["size"] > 0
                assert list(state.metrics()) == state.names
                told[0] += 1
                time.sleep(1e-3)
            except Exception as error:
                wrong.append(error)

    watchers = [threading.Thread(target=watch) for _ in range(3)] if is_watched else []
    for watcher in watchers:
        watcher.start()
    try:
        trained = train(ddp, rank, range(24))
    finally:
        done.set()
        for watcher in watchers:
            watcher.join()
    assert not wrong, wrong
    return trained, told[0]


def test_a_state_is_read_by_other_threads_while_it_trains() -> None:
    watched: Any = on_ranks(2, _watched, True)
    alone: Any = on_ranks(2, _watched, False)
    for (trained, told), (alone_trained, _) in zip(watched, alone):
        assert told > 0 and torch.equal(trained, alone_trained)
