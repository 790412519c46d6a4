"""Stores measurements in a file, and makes tables of them."""

import dataclasses
import json
import math
import pathlib
import statistics
from typing import Any, Callable

from names import ALONE, PLAIN, measured

TEXT = "novel"  # names the training text in the keys of runs, so that runs with another text have other keys
TOLERANCE = 1.005  # a loss is reached if it is within half a per cent


class Results:
    """Runs by name. Each run is stored in a file as soon as it is measured. Runs in the file are not measured again."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.runs: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, key: str, measure: Callable[[], Any]) -> Any:
        if key not in self.runs:
            self.runs[key] = measure()
            new = self.path.with_suffix(".new")
            lines = (f"{json.dumps(name)}: {json.dumps(run)}" for name, run in self.runs.items())
            new.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            new.replace(self.path)
        return self.runs[key]


def step_key(
    rate: str,
    world: object,
    scheme: str,
    turn: int,
    then: str = "",
    small: bool = False,
    slow: str = "",
    delay: float = 0.0,
    buckets: float | None = None,
) -> str:
    delayed = f", {delay:g} ms" if delay else ""
    more = f", buckets of {buckets:g} MB" if buckets else ""
    link = f"{rate}{then and ' then '}{then}{slow and ', one link of '}{slow}{delayed}{more}"
    return f"{TEXT}, {'small, ' if small else ''}steps at {link}, {world} ranks, round {turn}: {scheme}"


def together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins the steps of all rounds of a scheme. The schemes take turns in each round, so that changes of the machine's
    speed favour no scheme."""
    steps = {what: [value for run in runs for value in run[what]] for what in ("seconds", "cpu")}
    return {**runs[0], **steps}


def learning_key(world: int, seed: int, steps: int, scheme: str, rate: str = "none") -> str:
    """The name of a learning run. The name contains the rate only if the rate affects what is sent."""
    link = f" at {rate}" if measured(scheme) else ""
    return f"{TEXT}, learning for {steps} steps{link}, {world} ranks, seed {seed}: {scheme}"


def median(found: dict[str, Any]) -> float:
    return statistics.median(found["seconds"])


def _times(found: dict[str, Any], changes: bool) -> str:
    seconds = found["seconds"]
    if not changes:
        return f"{min(seconds):.3f} / {median(found):.3f} / {max(seconds):.3f}"
    half = len(seconds) // 2
    before, after = seconds[:half], seconds[half + half // 2 :]
    return f"{statistics.median(before):.3f} then {statistics.median(after):.3f}"


def steps_table(
    rates: list[str], schemes: list[str], found: Callable[[str, str], dict[str, Any]], changes: bool = False
) -> str:
    """Makes a table of seconds per step at every rate: lowest / median / highest. If the rate changes during a run, the
    table has the medians before the change and some steps after it."""
    lines = ["| scheme | bytes per step | CPU s | " + " | ".join(rates) + " |", "|---|--:|--:|" + "--:|" * len(rates)]
    for scheme in schemes:
        all_rates = [found(rate, scheme) for rate in rates]
        times = [_times(one, changes) for one in all_rates]
        cpu = statistics.median(all_rates[0]["cpu"])
        lines.append(f"| {scheme} | {all_rates[0]['bytes']:,.0f} | {cpu:.3f} | {' | '.join(times)} |")
    return "\n".join(lines)


def added_table(rates: list[str], schemes: list[str], found: Callable[[str, str], dict[str, Any]]) -> str:
    """Makes a table of the seconds that an exchange adds to a step at every rate: the difference of the medians."""
    lines = ["| scheme | " + " | ".join(rates) + " |", "|---|" + "--:|" * len(rates)]
    for scheme in schemes:
        added = [median(found(rate, scheme)) - median(found(rate, ALONE)) for rate in rates]
        lines.append(f"| {scheme} | {' | '.join(f'{seconds:.3f}' for seconds in added)} |")
    return "\n".join(lines)


def decisions(rates: list[str], schemes: list[str], found: Callable[[str, str], dict[str, Any]]) -> str:
    """Lists the reasons of the decisions by measured seconds, one reason per line."""
    lines = [
        f"{rate}, {scheme}: {why}\n"
        for scheme in schemes
        if measured(scheme)
        for rate in rates
        for why in found(rate, scheme)["decisions"]
    ]
    return "".join(["\n", *lines] if lines else [])


def mean_curve(runs: list[dict[str, Any]]) -> list[tuple[int, float]]:
    points = zip(*(run["curve"] for run in runs))
    return [(at[0][0], statistics.mean(loss for _, loss in at)) for at in points]


def steps_to(curve: list[tuple[int, float]], target: float) -> float | None:
    """The step from which the curve stays at or below ``target``. Interpolates linearly between points."""
    reached = None
    for (before, high), (step, low) in zip(curve, curve[1:]):
        if low > target:
            reached = None
        elif reached is None:
            reached = step - (step - before) * (target - low) / (high - low) if high > target else float(before)
    return reached


@dataclasses.dataclass
class Learnt:
    """Runs of one scheme with several seeds. If the rate affects what the scheme sends, there are runs at every
    rate."""

    scheme: str
    runs: dict[str, list[dict[str, Any]]]
    """Runs by rate."""
    step: Callable[[str, str], dict[str, Any]]
    """Times of a step by rate and scheme."""

    def seconds_per_step(self, rate: str) -> float:
        if not measured(self.scheme):
            return median(self.step(rate, self.scheme))
        return statistics.mean(median(run) for run in self.runs[rate])

    def seconds_to(self, rate: str, target: float) -> float | None:
        """Seconds until the mean of the seeds' curves reaches ``target``; None if the mean stays above."""
        needed = steps_to(mean_curve(self.runs[rate]), target)
        return needed * self.seconds_per_step(rate) if needed else None

    def seconds(self, rate: str, target: float) -> str:
        """The result of ``seconds_to`` as text."""
        needed = self.seconds_to(rate, target)
        if needed:
            return f"{needed:.1f} s"
        return f"more than {self.runs[rate][0]['curve'][-1][0] * self.seconds_per_step(rate):.1f} s"

    def steps(self, target: float) -> str:
        """Steps until ``target`` as text: steps of the mean of the seeds' curves, and the fewest and most steps of all
        runs."""
        most = max(run["curve"][-1][0] for runs in self.runs.values() for run in runs)
        means = [steps_to(mean_curve(runs), target) or math.inf for runs in self.runs.values()]
        each = [steps_to(run["curve"], target) or math.inf for runs in self.runs.values() for run in runs]

        def text(steps: float) -> str:
            return f"{steps:.0f}" if steps < math.inf else f"more than {most}"

        fewest, largest = text(min(means)), text(max(means))
        mean = fewest if fewest == largest else f"{fewest} to {largest}"
        return f"{mean} ({text(min(each))} to {text(max(each))})"

    def losses(self, steps: int) -> str:
        """Loss after this number of steps: mean, lowest and highest."""
        ends = [loss for runs in self.runs.values() for run in runs for step, loss in run["curve"] if step == steps]
        return f"{statistics.mean(ends):.3f} ({min(ends):.3f} to {max(ends):.3f})"


def plain_end(rates: list[str], all_learnt: list[Learnt]) -> tuple[int, float, float]:
    """Number of plain DDP's steps, its final loss, and the loss that the other schemes must reach."""
    plain = next(learnt for learnt in all_learnt if learnt.scheme == PLAIN)
    steps, reference = mean_curve(plain.runs[rates[0]])[-1]
    return steps, reference, TOLERANCE * reference


def learning_table(rates: list[str], all_learnt: list[Learnt]) -> str:
    """Makes a table of the steps and seconds until plain DDP's final loss."""
    steps, reference, target = plain_end(rates, all_learnt)
    lines = [
        f"The loss to be reached is {target:.3f}, plain DDP's after {steps} steps ({reference:.3f}) and half a per cent.",
        "",
        f"| scheme | loss after {steps} steps (seeds) | steps to the loss (seeds) | " + " | ".join(rates) + " |",
        "|---|--:|--:|" + "--:|" * len(rates),
    ]
    for learnt in all_learnt:
        times = " | ".join(learnt.seconds(rate, target) for rate in rates)
        lines.append(f"| {learnt.scheme} | {learnt.losses(steps)} | {learnt.steps(target)} | {times} |")
    return "\n".join(lines)
