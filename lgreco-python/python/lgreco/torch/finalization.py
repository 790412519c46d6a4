"""Ends the steps of fully_shard's modules that exchange gradients after the backward pass.

After ``set_manual_backward_finalization(True)``, FSDP exchanges gradients in ``finalize_backward()``, which may follow several
backward passes. torch.distributed.pipelining uses this mode. In older PyTorch, pipelining itself calls FSDP's callback for the
end of a backward pass. In both cases autograd does not report the end of the pass, so FSDP's own methods end the step.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.distributed.fsdp import FSDPModule

from lgreco._lgreco import LgrecoError


class Ending(Protocol):
    """A state whose steps may end outside a backward pass."""

    def _end_outside_pass(self) -> None:
        """Ends the step, if the end of its backward pass is unknown. Raises the step's error, which all ranks get."""

    def _break_off(self) -> None:
        """Records that the step under way will not be completed."""


class Finalization:
    """Wraps the methods by which FSDP ends a backward pass."""

    def __init__(self, module: torch.nn.Module, state: Ending) -> None:
        found = [part._get_fsdp_state() for part in module.modules() if isinstance(part, FSDPModule)]
        self._parts: list[Any] = list(dict.fromkeys(found))
        """FSDP's states of all modules. Only the root's methods are called, but the root is unknown before the first forward
        pass."""
        self._state = state
        for part in self._parts:
            replace_method(part, "_root_post_backward_final_callback", functools.partial(self._ending, part, False))
            replace_method(part, "finalize_backward", functools.partial(self._ending, part, True))  # since PyTorch 2.15
            replace_method(part, "_reset_iter_state", self._resetting)  # since PyTorch 2.15

    def is_awaited(self, besides: Any = None) -> bool:
        """Whether the caller must still call ``finalize_backward()`` of a root. Ignores the root of the part ``besides``."""
        # All parts of a root share its context.
        roots = [part._state_ctx for part in self._parts if besides is None or part._state_ctx is not besides._state_ctx]
        return any(getattr(root, "manual_backward_finalization_active", None) and not root.gradient_reduction_pending for root in roots)

    def expect_root(self, name: str) -> None:
        """Raises if nothing can end the step, because the root is outside the state's module. ``name`` is a parameter."""
        for part in self._parts:
            root = part._state_ctx
            is_manual = getattr(root, "manual_backward_finalization_active", None)
            if is_manual and not any(of._is_root for of in self._parts if of._state_ctx is root):
                what = "set_manual_backward_finalization(True) was called on a module that contains the module of this state"
                raise LgrecoError(f"{name}: {what}: make the state with the root, the outermost module under fully_shard")

    def _ending(self, part: Any, is_finalized: bool, own: Callable[..., None]) -> Callable[..., None]:
        """Wraps a method of ``part`` that ends a backward pass. ``is_finalized`` says whether the method is
        ``finalize_backward``."""

        def ending(*arguments: Any, **options: Any) -> None:
            try:
                own(*arguments, **options)
            except BaseException:
                self._state._break_off()
                raise
            if self.is_awaited(part if is_finalized else None):
                return
            try:
                self._state._end_outside_pass()
            except Exception:
                # With async_op=True, FSDP would otherwise wait for this part's gradients before its next exchange.
                if (reduction := getattr(part._comm_ctx, "active_gradient_reduction", None)) is not None:
                    part.wait_for_gradient_reduction(reduction)
                raise

        return ending

    def _resetting(self, own: Callable[[], None]) -> Callable[[], None]:
        """Wraps the method by which FSDP discards the gradients of an iteration."""

        def resetting() -> None:
            own()
            self._state._break_off()

        return resetting


def replace_method(of: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Replaces a method of one of FSDP's objects by ``make(method)``, if this version of FSDP has the method."""
    own = getattr(of, name, None)
    if own is None:
        return
    # If an earlier state has replaced the method, FSDP's own method is wrapped instead.
    own = getattr(own, "_of_fsdp", own)
    made = make(own)
    made._of_fsdp = own
    setattr(of, name, made)
