"""Weights that are loaded into a model while somebody remembers what they were."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch


class Loads:
    """Tells of the parameters that ``load_state_dict`` gives values to, as long as it is kept."""

    def __init__(self, model: torch.nn.Module, told: Callable[[list[torch.Tensor]], None]) -> None:
        """``told`` is a method, whose object this does not keep."""
        self._told = weakref.WeakMethod(told)
        handles: list[Any] = []
        for part in model.modules():
            before = _Before()
            handles.append(part.register_load_state_dict_pre_hook(before))  # type: ignore[no-untyped-call]
            handles.append(part.register_load_state_dict_post_hook(_After(before, self)))  # type: ignore[no-untyped-call]
        weakref.finalize(self, _remove, handles).atexit = False

    def tell(self, loaded: list[torch.Tensor]) -> None:
        told = self._told()
        if told is not None:
            told(loaded)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


class _Hook:
    """Of one module. Models that are copied or pickled take nothing of it along."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _NoHook, ()


class _NoHook:
    """In the place of a hook, in a copy of its model."""

    def __call__(self, *_: Any) -> None:
        pass


class _Before(_Hook):
    """Notes which of the module's own parameters are in what is loaded."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __call__(self, module: torch.nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
        self.found = [name for name, _ in module.named_parameters(recurse=False) if f"{prefix}{name}" in state]


class _After(_Hook):
    def __init__(self, before: _Before, loads: Loads) -> None:
        self._before, self._loads = before, weakref.ref(loads)

    def __call__(self, module: torch.nn.Module, _: Any) -> None:
        loads = self._loads()
        found, self._before.found = self._before.found, []
        if loads is not None and found:
            loads.tell([getattr(module, name) for name in found])
