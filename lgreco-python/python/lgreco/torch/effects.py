"""Finds options that have no effect in combination with other options."""

from collections.abc import Mapping
from typing import Any

from lgreco._lgreco import LgrecoError, methods_of_options
from lgreco.torch.options import is_default

PLANS = ("lgreco", "paper", "kmeans")
"""Policies that search for a plan. Only these policies use the options of ``_OF_PLANS``."""
_COMPRESSES = (*PLANS, "uniform", "accordion", "legacy")
"""Policies that compress. ``settings`` also compress."""
_OF_PLANS = ("budget", "objective", "candidates", "widths", "metric", "workers", "alpha")
_POLICIES: dict[str, tuple[str, ...]] = {
    **{option: PLANS for option in _OF_PLANS},
    "method": _COMPRESSES,
    "default": (*PLANS, "uniform"),
    "min_elements": _COMPRESSES,
    "ramp_up": (*PLANS, "uniform"),
    "lead": (*PLANS, "accordion"),
    "clusters": ("kmeans",),
    "accordion": ("lgreco", "paper", "accordion"),
    "legacy": ("legacy",),
    "optimizer": ("lgreco", "paper", "accordion"),
    "metrics_every": (*_COMPRESSES, "settings"),
    "residual_dtype": (*_COMPRESSES, "settings"),
    "on_plan": (*_COMPRESSES, "settings"),
}
"""The policies under which an option has an effect. ``settings`` counts as a policy. Options without an entry always
have an effect."""
_METHODS = dict(methods_of_options())


def without_effect(options: Mapping[str, Any]) -> LgrecoError | None:
    """The error for an option that has no effect in combination with the other options; None if each option has an effect.
    Assumes that each option is valid by itself."""
    has_settings = options.get("settings") is not None
    policy = "settings" if has_settings else options.get("policy") or "lgreco"
    beside = "settings=" if has_settings else f"policy={policy!r}"
    given = {name: value for name, value in options.items() if value is not None and not is_default(name, value)}
    for name, value in given.items():
        policies = _POLICIES.get(name)
        if policies is not None and policy not in policies:
            others = ", ".join("settings=" if other == "settings" else repr(other) for other in policies)
            return _idle(name, value, beside, f"leave {name} out, or choose a policy that it is for: {others}")
    method = options.get("method") or "hybrid"
    each = [name.strip() for name in method.split(",")]
    for name, methods in _METHODS.items():
        if name in given and not has_settings and not set(each) & set(methods):
            others = ", ".join(map(repr, methods))
            return _idle(name, given[name], f"method={method!r}", f"leave {name} out, or choose a method that it is for: {others}")
    if "optimizer" in given and "accordion" not in given:
        return _idle("optimizer", type(given["optimizer"]).__name__, "no accordion=", "leave it out, or give Accordion's levels as accordion")
    if "residual_dtype" in given and options.get("error_feedback") is False:
        return _idle("residual_dtype", given["residual_dtype"], "error_feedback=False", "leave one of the two out")
    if given.get("route") == "two_level" and policy == "uncompressed":
        return _idle("route", "two_level", "policy='uncompressed'", "leave it out: nothing is compressed between nodes")
    if given.get("route") == "scatter_reduce" and (policy == "uncompressed" or (not has_settings and each == ["powersgd"])):
        what = "policy='uncompressed'" if policy == "uncompressed" else "method='powersgd'"
        return _idle("route", "scatter_reduce", what, "leave it out: values that are summed on the wire have no payloads to scatter")
    return None


def _idle(name: str, value: object, beside: str, way_out: str) -> LgrecoError:
    return LgrecoError(f"{name} is {value!r}, which has no effect beside {beside}: {way_out}")
