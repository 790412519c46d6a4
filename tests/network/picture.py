#!/usr/bin/env python3
"""Draws how long schemes take to reach plain DDP's loss, by link.

    tests/network/picture.py RUNS.json PICTURE.svg

The program trains nothing. It reads the runs that tests/network/run has written, and fails if a run is missing. No
Python packages are needed. tests/network/run --plot draws the same picture of its own runs.
"""

import html
import itertools
import math
import pathlib
import sys
from typing import Any

from names import PLAIN
from results import Learnt, Results, learning_key, plain_end, step_key, together

SHOWN = {
    PLAIN: PLAIN,
    "bf16_compress_hook": "PyTorch, bf16",
    "powerSGD_hook 4": "PyTorch, PowerSGD 4",
    "lgreco QSGD 4": "lgreco, QSGD 4",
    "lgreco TopK 1 % in few bits": "lgreco, TopK 1 %",
    "lgreco PowerSGD 8, bf16": "lgreco, PowerSGD 8",
}
"""The schemes that are drawn, and their names in the picture. More lines in the picture could not be distinguished."""
RATES = {"none": "no limit", "10gbit": "10 Gbit/s", "1gbit": "1 Gbit/s", "200mbit": "200 Mbit/s", "100mbit": "100 Mbit/s", "20mbit": "20 Mbit/s"}
LEARNT, SEEDS, RANKS = 180, 3, 2

WIDTH, HEIGHT = 800, 460
LEFT, TOP, BOTTOM = 74, 84, HEIGHT - 44
SIZE = 13
TICKS = {10: "10 s", 30: "30 s", 60: "1 min", 120: "2 min", 300: "5 min", 600: "10 min", 1800: "30 min", 3600: "1 h", 10800: "3 h"}
# The colours of lgreco-cli/src/chart/colour.rs, for light and for dark pages.
COLOURS = {
    "ink": ("#262b33", "#e4e7ec"),
    "muted": ("#626a76", "#9da6b3"),
    "grid": ("#e3e6ea", "#2f353e"),
    "paper": ("#ffffff", "#14171c"),
    "blue": ("#2f6fb5", "#6aa5e6"),
    "orange": ("#d0751a", "#eda04e"),
    "green": ("#3f956c", "#5fc092"),
    "red": ("#b04a5a", "#e58796"),
    "violet": ("#70608f", "#b1a0d8"),
    "grey": ("#8a93a0", "#8a93a0"),
}
SERIES = ["grey", "violet", "red", "orange", "green", "blue"]
FONT = "system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif"


def text(words: str, x: float, y: float, colour: str = "ink", size: int = SIZE, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y + 0.35 * size:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{COLOURS[colour][0]}"'
    return f'<text class="{colour}" {place}>{html.escape(words)}</text>'


def line(points: list[tuple[float, float]], colour: str, width: float) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    stroke = f'fill="none" stroke="{COLOURS[colour][0]}" stroke-width="{width}"'
    return f'<polyline class="{colour}-line" points="{places}" {stroke}/>'


def apart(heights: list[float], lowest: float, step: float = 1.3 * SIZE) -> list[float]:
    """Moves the heights of texts apart, as little as possible, so that no text covers another. Keeps their order."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    found = list(heights)
    for above, here in zip(order, order[1:]):
        found[here] = max(found[here], found[above] + step)
    for below, here in zip([None, *order[::-1]], order[::-1]):
        found[here] = min(found[here], lowest if below is None else found[below] - step)
    return found


def draw(path: pathlib.Path, rates: list[str], all_learnt: list[Learnt]) -> None:
    """Draws the seconds to plain DDP's loss at each rate, with a line per scheme."""
    steps, _, target = plain_end(rates, all_learnt)
    shown = [learnt for learnt in all_learnt if learnt.scheme in SHOWN] or all_learnt[: len(SERIES)]
    seconds = {
        learnt.scheme: {rate: found for rate in rates if rate in learnt.runs and (found := learnt.seconds_to(rate, target))}
        for learnt in shown
    }
    values = [value for by_rate in seconds.values() for value in by_rate.values()]
    low, high = min(values) / 1.3, max(values) * 1.2
    right = WIDTH - 176

    def x(rate: str) -> float:
        return LEFT + 24 + (right - LEFT - 40) * rates.index(rate) / max(len(rates) - 1, 1)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * math.log(value / low) / math.log(high / low)

    title = "Time to plain DDP's loss, by link"
    dark = "".join(f".{name}{{fill:{of}}}.{name}-line{{stroke:{of}}}" for name, (_, of) in COLOURS.items())
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}" font-family="{FONT}">',
        f"<style>@media (prefers-color-scheme:dark){{{dark}}}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" fill="{COLOURS["paper"][0]}"/>',
        text(title, 22, 30, size=19),
        text(f"until the held-out loss is {target:.3f}, plain DDP's after {steps} steps and half a per cent; less is better", 22, 56, "muted"),
    ]
    for value, words in TICKS.items():
        if low <= value <= high:
            drawn += [line([(LEFT, y(value)), (right, y(value))], "grid", 1), text(words, LEFT - 8, y(value), "muted", 12, "end")]
    for rate in rates:
        drawn.append(text(RATES.get(rate, rate), x(rate), BOTTOM + 20, "muted", 12, "middle"))
    ends = []
    for learnt, colour in zip(shown, SERIES):
        points = [(x(rate), y(value)) for rate, value in seconds[learnt.scheme].items()]
        if not points:
            continue
        drawn.append(line(points, colour, 2.5 if learnt.scheme.startswith("lgreco") else 2))
        for (at, height), (rate, value) in zip(points, seconds[learnt.scheme].items()):
            tip = html.escape(f"{SHOWN.get(learnt.scheme, learnt.scheme)}, {RATES.get(rate, rate)}: {value:.0f} s")
            drawn.append(f'<circle class="{colour}" cx="{at:.1f}" cy="{height:.1f}" r="4" fill="{COLOURS[colour][0]}"><title>{tip}</title></circle>')
        ends.append((points[-1], colour, SHOWN.get(learnt.scheme, learnt.scheme)))
    for ((at, from_height), colour, words), height in zip(ends, apart([end[0][1] for end in ends], BOTTOM - SIZE / 2)):
        drawn += [line([(at, from_height), (right + 10, height), (right + 16, height)], colour, 1), text(words, right + 22, height)]
    path.write_text("\n".join([*drawn, "</svg>", ""]))


def recorded(path: pathlib.Path) -> list[Learnt]:
    """Reads the recorded runs of the shown schemes. A KeyError names a run that is missing."""
    runs = Results(path).runs

    def step(rate: str, scheme: str) -> dict[str, Any]:
        later = itertools.takewhile(runs.__contains__, (step_key(rate, RANKS, scheme, turn) for turn in itertools.count(2)))
        return together([runs[step_key(rate, RANKS, scheme, 1)], *map(runs.__getitem__, later)])

    learnt = {scheme: [runs[learning_key(RANKS, seed + 1, LEARNT, scheme)] for seed in range(SEEDS)] for scheme in SHOWN}
    return [Learnt(scheme, {rate: of for rate in RATES}, step) for scheme, of in learnt.items()]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(pathlib.Path(sys.argv[2]), list(RATES), recorded(pathlib.Path(sys.argv[1])))
