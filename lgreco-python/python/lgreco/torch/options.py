"""The options that all states have in common."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypedDict

import torch

from lgreco._lgreco import LgrecoError


class Scaler(Protocol):
    """The part of torch.amp.GradScaler that lgreco uses."""

    def get_scale(self) -> float:
        """The factor by which the loss is multiplied."""


def enabled(scaler: Any) -> Any:
    """The GradScaler, or None if it was made with ``enabled=False``. Such a scaler skips no step."""
    is_enabled = None if isinstance(scaler, type) else getattr(scaler, "is_enabled", None)
    return None if callable(is_enabled) and not is_enabled() else scaler


class Options(TypedDict, total=False):
    """The options of a state. ``LGreCoState`` documents their meanings and defaults."""

    method: str | None
    default: float | None
    budget: str | int
    objective: str
    policy: str | None
    settings: Mapping[str, str] | None
    start_iter: int
    period: int
    window: int
    ramp_up: tuple[float, int] | None
    lead: int | None
    error_feedback: bool
    residual_dtype: torch.dtype
    reduce_dtype: torch.dtype | None
    grad_scaler: Scaler | None
    random_seed: int
    on_plan: Callable[[Any], None] | None
    alpha: float
    metric: str
    workers: int
    candidates: tuple[float, float, float]
    widths: list[str | int]
    min_elements: int
    metrics_every: int
    undo: bool
    route: str | None
    clusters: int
    accordion: tuple[float, float] | tuple[float, float, float, float]
    legacy: tuple[list[int], list[list[float]], int]
    optimizer: torch.optim.Optimizer | None


def expect(holds: bool, option: str, value: object, expected: str) -> None:
    if not holds:
        raise LgrecoError(f"{option} is {value!r}, expected {expected}")


def wrong_route(options: Options, only: str | None, why: str) -> LgrecoError | None:
    """The error for a ``route`` that cannot work, or None. For sharded gradients, ``only`` is the single possible route, and
    this function sets it. Otherwise ``only`` is None."""
    route = options.get("route")
    if only is not None:
        options["route"] = only
        told = LgrecoError(f'route is {route!r}, and {why}: leave route out, it is "{only}" here')
        return None if route in (None, only) else told
    expected = '"all_gather" or "scatter_reduce": each rank gets whole means here'
    return None if route in (None, "all_gather", "scatter_reduce") else LgrecoError(f"route is {route!r}, expected {expected}")


_DECIDING = (
    "method", "default", "candidates", "widths", "metric", "workers", "min_elements", "settings", "policy", "clusters", "accordion",
    "legacy", "error_feedback", "residual_dtype", "reduce_dtype", "budget", "objective", "alpha", "ramp_up",
)  # fmt: skip


def deciding(told: Mapping[str, Any]) -> dict[str, str]:
    """The options that influence the choice of settings, as text."""
    given = ((name, told.get(name)) for name in _DECIDING)
    # ``budget`` has another default under the policy ``paper``, so its value is kept even if it equals the usual default.
    kept = {"budget"} if told.get("policy") == "paper" else set()
    return {name: repr(value) for name, value in given if value is not None and (name in kept or not is_default(name, value))}


_DEFAULTS: dict[str, object] = {
    "budget": "size", "objective": "bits", "lead": 0, "residual_dtype": torch.float32, "metrics_every": 0, "error_feedback": True,
}  # fmt: skip


def is_default(name: str, value: object) -> bool:
    """Whether this value is the option's default."""
    # Values of different types are not compared, because a comparison could raise an error.
    return name in _DEFAULTS and type(value) is type(_DEFAULTS[name]) and bool(value == _DEFAULTS[name])


def in_order(settings: Any) -> Any:
    """Sorts settings, so that equal settings have the same text."""
    return sorted(settings.items(), key=repr) if isinstance(settings, Mapping) else settings


def name_of(option: str, dtype: torch.dtype, known: tuple[torch.dtype, ...]) -> str:
    expect(dtype in known, option, dtype, ", ".join(map(str, known)))
    return str(dtype).removeprefix("torch.")
