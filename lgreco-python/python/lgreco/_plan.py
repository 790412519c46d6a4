"""Plans for existing gradients."""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from lgreco._arrays import Array, place
from lgreco._lgreco import LgrecoError, PlanPage, check_plan, make_plan, plan_page
from lgreco._plot import bars


class Plan:
    """A setting per layer, with sizes and errors, as ``lgreco plan --json`` writes it.

    >>> import array, pathlib, tempfile
    >>> values = memoryview(array.array("f", range(4096))).cast("B").cast("f", (64, 64))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "plan.json")
    ...     plan({"fc1.weight": values}, method="topk", default=0.1).save(path)
    ...     loaded = Plan.load(path)
    >>> loaded.settings["fc1.weight"], loaded
    ('topk 410', <Plan of 1 layer, 8.51 times smaller>)
    """

    def __init__(self, text: str) -> None:
        """Reads the JSON of a plan file; raises LgrecoError if it is not valid."""
        self._text = check_plan(text)
        self._file: dict[str, Any] = json.loads(self._text)
        self._page: PlanPage | None = None
        """The error table, shapes and norms, which a plan file lacks. None if the plan was loaded or unpickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_page": None}

    @property
    def settings(self) -> dict[str, str]:
        """Each layer's setting as text, for ``LGreCoState(settings=…)``, without the layers that stay uncompressed."""
        return {layer["name"]: layer["setting"] for layer in self._file["layers"] if layer.get("setting")}

    @property
    def size(self) -> int:
        """Bits that one worker sends for the plan's layers."""
        return int(self._file["size"])

    @property
    def error(self) -> float:
        """The sum of the layers' errors."""
        return float(self._file["error"])

    @property
    def budget(self) -> float | None:
        """The largest error that the plan may have; None if the size was limited instead."""
        return self._file.get("budget")

    @property
    def size_limit(self) -> int | None:
        """The largest number of bits that the plan may have; None if the error was limited instead."""
        return self._file.get("size_limit")

    @property
    def lower_bound(self) -> float:
        """A lower bound on the bits of any plan within the error budget, or on the error of any plan within the size
        limit."""
        return float(self._file["lower_bound"])

    @property
    def proven(self) -> bool:
        """Whether the plan is proved optimal."""
        return bool(self._file["proven"])

    @property
    def ratio(self) -> float:
        """Bytes of the gradients divided by bytes sent."""
        return float(self._file["uncompressed_size"] / self.size) if self.size else float("inf")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan file."""
        pathlib.Path(path).write_text(self._text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Reads a plan file; raises LgrecoError with the path if it is missing or not valid."""
        try:
            return cls(pathlib.Path(path).read_bytes().decode())
        except OSError as error:
            raise LgrecoError(f"{os.fspath(path)}: {error.strerror}") from error
        except ValueError as error:
            raise LgrecoError(f"{os.fspath(path)}: {error}") from error

    def _rows(self) -> list[tuple[str, str, float, int]]:
        return [(layer["name"], layer["label"], layer["error"], layer["size"]) for layer in self._file["layers"]]

    def __str__(self) -> str:
        rows = self._rows()
        width = max((len(name) for name, *_ in rows), default=5)
        lines = [f"{'layer':{width}}  {'setting':>14}  {'error':>10}  {'bits':>12}"]
        lines += [f"{name:{width}}  {label:>14}  {error:>10.3g}  {size:>12,}" for name, label, error, size in rows]
        if self.proven:
            proof = "proved optimal"
        elif self.size_limit is None:
            proof = f"at least {self.lower_bound:,.0f} bits are needed"
        else:
            proof = f"the least error is at least {self.lower_bound:.3g}"
        lines.append(f"{self.ratio:.2f} times smaller, {self.size:,} bits, error {self.error:.3g}, {proof}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        layers = len(self._file["layers"])
        return f"<Plan of {layers} layer{'' if layers == 1 else 's'}, {self.ratio:.2f} times smaller>"

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws each layer's bits and error; the ending of ``path`` sets the picture's format. Needs matplotlib."""
        rows = self._rows()
        columns = {"bits": [float(size) for *_, size in rows], "error": [error for *_, error, _ in rows]}
        title = f"{self.ratio:.2f} times smaller"
        bars(path, title, [name for name, *_ in rows], [label for _, label, *_ in rows], columns)

    def html(self) -> str:
        """Returns an HTML page about the plan: one file that loads nothing else.

        The page shows the settings over the model's depth, and a table of layers that can be sorted. The page also shows the
        size-error frontier, with the uniform setting and the plan. If the plan was loaded or unpickled, frontier and relative
        errors are missing, because a plan file does not have the error table. Making the page computes up to 100 plans of the
        frontier.

        >>> pathlib.Path("report.html").write_text(plan(gradients).html())  # doctest: +SKIP
        """
        return plan_page(self._text) if self._page is None else self._page.html()

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
    gradients: Mapping[str, Array] | str | os.PathLike[str],
    *,
    method: str = "hybrid",
    default: float | None = None,
    candidates: tuple[float, float, float] | None = None,
    budget: str | float | None = None,
    size: str | int | None = None,
    alpha: float | None = None,
    groups: Sequence[Sequence[str]] = (),
    fixed: Mapping[str, str] | None = None,
    widths: Sequence[str | int] | None = None,
    solver: str = "exact",
    metric: str | None = None,
    workers: int | None = None,
    min_elements: int = 1024,
    random_seed: int = 0,
) -> Plan:
    """Chooses a compressor for each layer: the least error within a size, or the smallest size within an error.

    Parameters
    ----------
    gradients
        A float32, float16 or bfloat16 array per layer, by name: tensors of torch, arrays of numpy, or any object with
        DLPack or a buffer. ``gradients`` can also be the path of a safetensors file, of an index of several files, or
        of a folder with them. Arrays are treated as matrices: the first dimension counts the rows, and all other
        dimensions together the columns.
    method, default, candidates
        As in ``lgreco.torch.LGreCoState``. ``candidates`` is the range of parameters for the plan: first, last and
        step.
    budget, size, alpha
        The limit of the plan. Without ``budget``, the plan minimises the error within ``size`` bits, by default the size of the
        uniform setting ``default``. With ``budget``, the plan minimises the size within this error: a number, or ``"uniform"``
        for the error of the uniform setting. ``alpha`` multiplies the uniform setting's size or error.
    groups
        Lists of layers that must get the same setting, such as tied weights. A ``*`` matches any text, which must be
        the same in all names of a group: ``["h.*.q", "h.*.k"]``.
    fixed
        Fixed settings by layer: ``{"head.weight": "qsgd 8"}``; ``*`` matches any text.
    widths
        Formats of the values that TopK sends: ``"full"``, or 1 to 8 bits per value. The default is full.
    solver
        ``"exact"``: the plan is proved optimal, or ``lower_bound`` limits its distance from the optimum. ``"dp"``: Algorithm 1
        of the L-GreCo paper. ``"paper"``: Algorithm 1, by default with the paper's metric and budget.
    metric
        The measure of errors: ``"squared-l2"``, the default, which predicts the training loss best, or ``"l2"`` as in the paper.
    workers
        Number of workers whose payloads are averaged. Errors of EDEN and QSGD are independent between workers and average out.
        So this number matters for the choice between methods.
    min_elements
        Layers with fewer elements stay uncompressed and are not in the plan.

    Raises LgrecoError with the layer's name for values that are not finite, and for invalid options.

    >>> import array, math
    >>> noise = array.array("f", (math.sin(i * i) for i in range(4096)))
    >>> made = plan({"fc1.weight": memoryview(noise).cast("B").cast("f", (64, 64))}, method="topk", default=0.1)
    >>> made.proven, made.settings
    (True, {'fc1.weight': 'topk 410'})
    """
    options: dict[str, Any] = {"method": method, "default": default, "candidates": candidates, "metric": metric}
    options.update(workers=workers, widths=widths, min_elements=min_elements, random_seed=random_seed)
    options.update(alpha=alpha, budget=budget, size=size, groups=groups)
    options.update(fixed=list((fixed or {}).items()))
    if isinstance(gradients, (str, os.PathLike)):
        return _made(*make_plan(os.fspath(gradients), solver, **options))
    if not isinstance(gradients, Mapping):
        raise TypeError(f"gradients are a {type(gradients).__name__}, expected an array per layer's name, or the path of a file")
    for name in gradients:
        if not isinstance(name, str):
            raise TypeError(f"a layer's name is {name!r}, expected text")
    with_places = {name: place(name, array) for name, array in gradients.items()}
    layers = [(name, found.dims, found.dtype, found.address) for name, found in with_places.items()]
    return _made(*make_plan(layers, solver, **options))


def _made(text: str, page: PlanPage) -> Plan:
    made = Plan(text)
    made._page = page
    return made
