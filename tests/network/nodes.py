"""Nodes of several ranks with a slow link between them: bytes through a node's link, and seconds per step."""

import dataclasses
import statistics
from typing import Any, Callable

from names import PLAIN

SCHEMES = [
    PLAIN,
    "bf16_compress_hook",
    "bf16, summed in f32",
    "powerSGD_hook 4",
    "lgreco EDEN 3, flat",
    "lgreco EDEN 3, two-level",
    "lgreco default, flat",
    "lgreco default, two-level",
]


@dataclasses.dataclass(frozen=True)
class Nodes:
    """So many nodes of so many ranks."""

    nodes: int
    ranks: int

    @classmethod
    def parse(cls, text: str) -> "Nodes":
        """``2x4``: two nodes of four ranks."""
        nodes, ranks = (int(number) for number in text.split("x"))
        if nodes < 2 or ranks < 1:
            raise ValueError("there are at least two nodes, of at least one rank")
        return cls(nodes, ranks)

    def __str__(self) -> str:
        return f"{self.nodes}x{self.ranks}"

    @property
    def world(self) -> int:
        return self.nodes * self.ranks

    def in_theory(self, scheme: str, sent: float) -> float:
        """Bytes that leave a node, of ranks that each count ``sent`` bytes of their own.

        Rings (all-reduce, all-gather) cross each node's link once: a ring all-reduce of n bytes sends 2 (W - 1) / W n, and a ring
        all-gather the parts of all ranks but one. An all-to-all sends each rank of another node its part.
        """
        others = self.world - 1
        if scheme.endswith("flat"):
            return others * sent
        if scheme.endswith("two-level"):
            return (self.nodes - 1) * self.ranks * sent
        if scheme == "bf16, summed in f32":
            return sent / self.world * (self.ranks * (self.world - self.ranks) + others)
        return 2 * others / self.world * sent


def nodes_table(nodes: Nodes, rates: list[str], schemes: list[str], found: Callable[[str, str], dict[str, Any]]) -> str:
    """A line for each scheme. Bytes are those at the first rate."""
    lines = [
        "| scheme | bytes through a node's link per step | in theory | than plain DDP | " + " | ".join(rates) + " |",
        "|---|--:|--:|--:|" + "--:|" * len(rates),
    ]
    plain = found(rates[0], PLAIN)["link"] if PLAIN in schemes else None
    for scheme in schemes:
        first = found(rates[0], scheme)
        fewer = f"{plain / first['link']:.2f} times fewer" if plain else ""
        seconds = " | ".join(f"{statistics.median(found(rate, scheme)['seconds']):.3f}" for rate in rates)
        theory = nodes.in_theory(scheme, first["bytes"])
        lines.append(f"| {scheme} | {first['link']:,.0f} | {theory:,.0f} | {fewer} | {seconds} |")
    return "\n".join(lines)
