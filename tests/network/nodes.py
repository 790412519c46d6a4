"""Measures nodes of several ranks with slow links between them: bytes through a node's link, and seconds per step."""

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
    """A number of nodes, and the number of ranks per node."""

    nodes: int
    ranks: int

    @classmethod
    def parse(cls, text: str) -> "Nodes":
        """Parses for example ``2x4``: two nodes of four ranks each."""
        nodes, ranks = (int(number) for number in text.split("x"))
        if nodes < 2 or ranks < 1:
            raise ValueError("there are at least two nodes, of at least one rank")
        return cls(nodes, ranks)

    def __str__(self) -> str:
        return f"{self.nodes}x{self.ranks}"

    @property
    def world(self) -> int:
        return self.nodes * self.ranks

    def in_theory(self, scheme: str, sent: float, summed: float) -> float:
        """Number of bytes that leave a node in theory, if each of its ranks counts ``sent`` bytes. Without two levels,
        lgreco all-reduces ``summed`` of these bytes uncompressed.

        Ring all-reduce and ring all-gather cross each node's link once. A ring all-reduce of n bytes sends 2 (W - 1) /
        W n bytes over the link. A ring all-gather sends the parts of all ranks but one. An all-to-all sends a separate
        part to each rank of another node. From four nodes on, EDEN's shards are averaged by scatter-reduce: each rank
        sends all parts but its own, and its part of the mean to all other nodes.
        """
        others = self.world - 1
        if scheme.endswith("flat"):
            return others * (sent - summed + 2 / self.world * summed)
        if scheme.endswith("two-level"):
            is_scattered = self.nodes >= 4 and "EDEN" in scheme
            return (2 / self.nodes if is_scattered else 1) * (self.nodes - 1) * self.ranks * sent
        if scheme == "bf16, summed in f32":
            return sent / self.world * (self.ranks * (self.world - self.ranks) + others)
        return 2 * others / self.world * sent


def nodes_table(nodes: Nodes, rates: list[str], schemes: list[str], found: Callable[[str, str], dict[str, Any]]) -> str:
    """Makes a table with a line for each scheme. The scheme's bytes were counted at the first rate."""
    lines = [
        "| scheme | bytes through a node's link per step | in theory | than plain DDP | " + " | ".join(rates) + " |",
        "|---|--:|--:|--:|" + "--:|" * len(rates),
    ]
    plain = found(rates[0], PLAIN)["link"] if PLAIN in schemes else None
    for scheme in schemes:
        first = found(rates[0], scheme)
        fewer = f"{plain / first['link']:.2f} times fewer" if plain else ""
        seconds = " | ".join(f"{statistics.median(found(rate, scheme)['seconds']):.3f}" for rate in rates)
        theory = nodes.in_theory(scheme, first["bytes"], first["summed"])
        lines.append(f"| {scheme} | {first['link']:,.0f} | {theory:,.0f} | {fewer} | {seconds} |")
    return "\n".join(lines)
