"""What every state can be told, by name."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypedDict

import torch


class Scaler(Protocol):
    """torch.amp.GradScaler, as far as it matters here."""

    def get_scale(self) -> float:
        """The factor of the loss."""


class Options(TypedDict, total=False):
    """``LGreCoState`` says what they mean, and what they are where they are left out."""

    method: str
    default: float | None
    budget: str | int
    objective: str
    policy: str
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
    route: str
    clusters: int
    accordion: tuple[float, float] | tuple[float, float, float, float]
    legacy: tuple[list[int], list[list[float]], int]
    optimizer: torch.optim.Optimizer | None
