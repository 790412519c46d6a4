"""Reports of all states (numbers for TensorBoard, and a picture), and errors for wrong uses of a state."""

import math
import os
from typing import Any, NoReturn

from lgreco._plot import bars
from lgreco.torch.options import Options

_GIVEN = frozenset({
    *Options.__annotations__, "process_group", "replicate_group", "node_group", "hold_zeros", "every", "delay", "fragments",
    "learning_rate", "momentum", "feedback_decay", "joined", "forget_moved",
})  # fmt: skip
"""Names of options, which are given when a state is made."""


class Reports:
    """Reports from ``metrics``, ``compression_stats`` and the present plans."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _GIVEN:
            kind = type(self).__name__
            raise AttributeError(f"{name} is an option of {kind}, and cannot change afterwards: make another {kind} with it, and load this one's state_dict()")
        super().__setattr__(name, value)

    def __reduce__(self) -> NoReturn:
        kind, instead = type(self).__name__, "save its state_dict(), and copy or pickle a model without its wrapper (model.module)"
        raise TypeError(f"an {kind} belongs to a process group, and is neither copied nor pickled: {instead}")

    def metrics(self) -> dict[str, dict[str, Any]]:
        raise NotImplementedError

    def compression_stats(self) -> tuple[float, int, int]:
        raise NotImplementedError

    def _plans(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def scalars(self) -> dict[str, float]:
        """The numbers of ``metrics`` and ``compression_stats`` by name, for TensorBoard's ``add_scalar``."""
        ratio, _, sent = self.compression_stats()
        found = {"lgreco/ratio": ratio, "lgreco/bytes": float(sent)}
        plans = [plan for plan in self._plans() if "error" in plan]
        if plans:
            found.update({f"lgreco/plan/{kind}": sum(plan[kind] for plan in plans) for kind in ("error", "size")})
        for name, layer in self.metrics().items():
            known = {kind: layer[kind] for kind in ("relative_error", "residual_norm") if layer[kind] is not None}
            found.update({f"lgreco/{kind}/{name}": value for kind, value in known.items()})
        return found

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws bytes and errors of each layer to a file. The suffix of ``path`` sets the format. Needs matplotlib."""
        metrics = self.metrics()
        labels = [layer["setting"] for layer in metrics.values()]
        sent = [float(layer["bytes_out"]) for layer in metrics.values()]
        errors = [100.0 * math.sqrt(layer["relative_error"] or 0.0) for layer in metrics.values()]
        title = f"{self.compression_stats()[0]:.2f} times fewer bytes"
        bars(path, title, list(metrics), labels, {"bytes sent": sent, "relative error, %": errors})
