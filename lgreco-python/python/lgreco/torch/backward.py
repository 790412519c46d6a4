"""Detects the end of a backward pass, even if reentrant checkpoints run further passes within it."""

import functools
import threading
import weakref
from collections.abc import Callable

import torch


class BackwardPass:
    """Calls ``at_end`` once, at the end of the outermost backward pass under way.

    Autograd's engine calls back at the end of a graph task. A reentrant checkpoint runs an inner task while the engine
    evaluates a node of the outer task. When the inner task ends, this object places hooks on the nodes that follow in
    the outer task. Before the first of these nodes runs, its hook asks for a callback at the end of the outer task.
    """

    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._callback: Callable[[], object] = lambda: None
        """A weak reference to the callback, which returns None after the engine has dropped the callback."""
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        """Hooks of the nodes that come after an inner task."""
        self._threads = {threading.main_thread().ident, threading.get_ident()}
        self.is_known = self._ask()
        """Whether the engine calls back at the end of the pass. False if no pass is under way: in DDP's ``join``, a process
        without inputs only mirrors the collectives of other processes. Also False if the caller ends the step after the
        pass."""
        if not self.is_known:
            self.forget()

    @property
    def is_between(self) -> bool:
        """Whether an inner task has ended, and the callback at the end of the outer task is not queued yet."""
        return bool(self._hooks)

    def is_over(self) -> bool:
        """Whether the pass is known to have ended."""
        if self.is_between:
            # The nodes with hooks may outlive a failed pass. The pass has failed if the training thread runs no graph task.
            return torch._C._current_graph_task_id() == -1 and threading.get_ident() in self._threads
        return self._callback() is None

    def forget(self) -> None:
        """Drops ``at_end``, because the pass has failed."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._at_end = _nothing

    def _ask(self) -> bool:
        callback = functools.partial(self._task_ends)
        if not queue(callback):
            return False
        # From now on only the engine keeps the callback alive, until the task ends or fails.
        self._callback = weakref.ref(callback)
        return True

    def _task_ends(self) -> None:
        # This thread still evaluates the node that has run the inner task.
        outer = torch._C._current_autograd_node()
        after = [] if outer is None else [node for node, _ in outer.next_functions if node is not None]
        if not after:
            # ``at_end`` refers to this object. Dropping ``at_end`` avoids a reference cycle.
            at_end, self._at_end = self._at_end, _nothing
            at_end()
            return
        self._hooks = [node.register_prehook(self._goes_on) for node in after]

    def _goes_on(self, _: object) -> None:
        """Runs before a node of the outer task, and queues the callback for the end of that task."""
        if self._hooks:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            self._ask()


def _nothing() -> None:
    pass


def queue(callback: Callable[[], None]) -> bool:
    """Queues a callback for the end of the present graph task, after earlier callbacks. Returns False if there is no task."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True
