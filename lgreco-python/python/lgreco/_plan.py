"""Plans for gradients that are there already."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from lgreco._arrays import Array, place
from lgreco._lgreco import check_plan, make_plan


class Plan:
    """A setting per layer, with what it costs: what ``lgreco plan --json`` writes.

    >>> plan = Plan.load("plan.json")                    # doctest: +SKIP
    >>> plan.settings["fc1.weight"]                      # doctest: +SKIP
    'topk 786'
    """

    def __init__(self, text: str) -> None:
        """Of the JSON of a plan file; LgrecoError says what is wrong with it."""
        self._text = check_plan(text)
        self._file: dict[str, Any] = json.loads(self._text)

    @property
    def settings(self) -> dict[str, str]:
        """Each layer's setting as text, for ``LGreCoState(settings=…)``; layers that stay uncompressed are left out."""
        return {layer["name"]: layer["setting"] for layer in self._file["layers"] if layer.get("setting")}

    @property
    def size(self) -> int:
        """Bits that one worker sends for these layers."""
        return int(self._file["size"])

    @property
    def error(self) -> float:
        """The sum of the layers' errors."""
        return float(self._file["error"])

    @property
    def budget(self) -> float:
        """The error that the plan was allowed."""
        return float(self._file["budget"])

    @property
    def proven(self) -> bool:
        """Whether the plan is proved optimal."""
        return bool(self._file["proven"])

    @property
    def ratio(self) -> float:
        """How many times smaller than the gradients."""
        return float(self._file["uncompressed_size"] / self.size) if self.size else float("inf")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan file."""
        pathlib.Path(path).write_text(self._text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Reads a plan file; LgrecoError names the file and what is wrong."""
        text = pathlib.Path(path).read_text()
        try:
            return cls(text)
        except ValueError as error:
            error.args = (f"{os.fspath(path)}: {error}",)
            raise

    def _rows(self) -> list[tuple[str, str, float, int]]:
        return [(layer["name"], layer["label"], layer["error"], layer["size"]) for layer in self._file["layers"]]

    def __str__(self) -> str:
        rows = self._rows()
        width = max((len(name) for name, *_ in rows), default=5)
        lines = [f"{'layer':{width}}  {'setting':>14}  {'error':>10}  {'bits':>12}"]
        lines += [f"{name:{width}}  {label:>14}  {error:>10.3g}  {size:>12,}" for name, label, error, size in rows]
        proof = "proved optimal" if self.proven else f"at least {self._file['lower_bound']:,.0f} bits are needed"
        lines.append(f"{self.ratio:.2f} times smaller, {self.size:,} bits, {proof}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Plan of {len(self._file['layers'])} layers, {self.ratio:.2f} times smaller>"

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td>{_escaped(name)}</td><td>{_escaped(label)}</td><td>{error:.3g}</td><td>{size:,}</td></tr>"
            for name, label, error, size in self._rows()
        )
        head = "<tr><th>layer</th><th>setting</th><th>error</th><th>bits</th></tr>"
        return f"<table>{head}{cells}</table><p>{_escaped(str(self).splitlines()[-1])}</p>"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def plan(
    gradients: Mapping[str, Array],
    *,
    method: str = "hybrid",
    default: float | None = None,
    candidates: tuple[float, float, float] | None = None,
    alpha: float = 1.0,
    solver: str = "exact",
    metric: str | None = None,
    min_elements: int = 1024,
    random_seed: int = 0,
) -> Plan:
    """Chooses a compressor for each layer: the smallest size whose error is at most ``alpha`` times that of a uniform setting.

    Parameters
    ----------
    gradients
        A float32, float16 or bfloat16 array per layer, by name: tensors of torch, arrays of numpy, whatever has DLPack or a
        buffer. Matrices keep their rows; other dimensions are columns.
    method, default, candidates
        As in ``lgreco.torch.LGreCoState``; ``candidates`` are the first, last and step of the parameters that are offered.
    solver
        ``"exact"``: proved optimal; ``"dp"``: Algorithm 1 of the paper.
    metric
        ``"l2"`` or ``"squared-l2"``.
    min_elements
        Layers with fewer elements stay uncompressed and are not in the plan.

    Raises LgrecoError with the layer's name for values that are not finite, and for options that do not fit.

    >>> import array, math
    >>> noise = array.array("f", (math.sin(i * i) for i in range(4096)))
    >>> made = plan({"fc1.weight": memoryview(noise).cast("B").cast("f", (64, 64))}, method="topk", default=0.1)
    >>> made.proven, made.settings
    (True, {'fc1.weight': 'topk 410'})
    """
    with_places = {name: place(name, array) for name, array in gradients.items()}
    layers = [(name, found.dims, found.dtype, found.address) for name, found in with_places.items()]
    options: dict[str, Any] = {"method": method, "default": default, "candidates": candidates, "metric": metric}
    return Plan(make_plan(layers, solver, alpha, min_elements=min_elements, seed=random_seed, **options))
