"""Bar charts of layers."""

import os
from collections.abc import Mapping, Sequence


def bars(
    path: str | os.PathLike[str],
    title: str,
    names: Sequence[str],
    labels: Sequence[str],
    columns: Mapping[str, Sequence[float]],
) -> None:
    """Draws a bar per layer and column; the bars of the first column have the layers' labels."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(10, 1.5 + 0.22 * len(names)), layout="constrained")
    figure.suptitle(title)
    places = range(len(names))
    names = [name.replace("$", r"\$") for name in names]  # between two dollars, matplotlib expects a formula
    for axes, (heading, values) in zip(figure.subplots(1, len(columns), sharey=True), columns.items()):
        drawn = axes.barh(places, values, color="#2f6fb5")
        axes.set_title(heading, fontsize="medium")
        axes.locator_params(axis="x", nbins=5)
        if max(values, default=0.0) >= 1000.0:
            axes.xaxis.set_major_formatter(EngFormatter())
        axes.spines[["top", "right"]].set_visible(False)
        if heading == next(iter(columns)):
            axes.bar_label(drawn, labels, padding=3, fontsize="x-small")
            axes.set_yticks(places, names, fontsize="x-small")
            axes.margins(x=0.3)
            axes.invert_yaxis()
    figure.savefig(path)
