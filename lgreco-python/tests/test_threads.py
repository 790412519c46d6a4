"""Several threads of one process. Without a GIL they run at the same time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from ranks import on_ranks
from test_training import make, train

import lgreco


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
