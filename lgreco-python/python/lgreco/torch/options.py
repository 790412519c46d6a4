"""What every state can be told, by name."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypedDict

import torch

from lgreco._lgreco import LgrecoError


class Scaler(Protocol):
    """torch.amp.GradScaler, as far as it matters here."""

    def get_scale(self) -> float:
        """The factor of the loss."""


class Options(TypedDict, total=False):
    """``LGreCoState`` says what they mean, and what they are where they are left out."""

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
    lead: int
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
    route: str
    clusters: int
    accordion: tuple[float, float] | tuple[float, float, float, float]
    legacy: tuple[list[int], list[list[float]], int]
    optimizer: torch.optim.Optimizer | None


def expect(holds: bool, option: str, value: object, expected: str) -> None:
    if not holds:
        raise LgrecoError(f"{option} is {value!r}, expected {expected}")


def in_order(settings: Any) -> Any:
    """The same text for the same settings, whatever the order that they are given in."""
    return sorted(settings.items(), key=repr) if isinstance(settings, Mapping) else settings


def name_of(option: str, dtype: torch.dtype, known: tuple[torch.dtype, ...]) -> str:
    expect(dtype in known, option, dtype, ", ".join(map(str, known)))
    return str(dtype).removeprefix("torch.")
