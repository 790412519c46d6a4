"""The end of a backward pass, also where reentrant checkpoints run passes of their own within it."""

import functools
import threading
import weakref
from collections.abc import Callable

import torch


class BackwardPass:
    """Calls ``at_end`` once, at the end of the outermost backward pass under way.

    The engine calls back at the end of a graph task. A reentrant checkpoint runs a task of its own while a node of the outer task
    is evaluated. At the end of such an inner task this waits for the nodes after that node, which belong to the outer task, and
    asks for a callback of that one.
    """

    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._callback: Callable[[], object] = lambda: None
        """Gives None when the engine has dropped its callback."""
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        """Of the nodes that come after an inner task."""
        self._threads = {threading.main_thread().ident, threading.get_ident()}
        self.is_known = self._ask()
        """False where no backward pass is under way: where a process that has joined shadows the others' collectives."""
        if not self.is_known:
            self.forget()

    @property
    def is_between(self) -> bool:
        """Whether an inner task has ended, and the outer one has not been asked yet."""
        return bool(self._hooks)

    def is_over(self) -> bool:
        """Whether the pass has ended; False also where this cannot be known."""
        if self.is_between:
            # Nodes may outlive a pass that has failed. Who trains is in no task then.
            return torch._C._current_graph_task_id() == -1 and threading.get_ident() in self._threads
        return self._callback() is None

    def forget(self) -> None:
        """Never calls, as the pass has failed."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._at_end = _nothing

    def _ask(self) -> bool:
        callback = functools.partial(self._task_ends)
        if not queue(callback):
            return False
        # From now on the engine alone keeps it, until the task has ended in whatever way.
        self._callback = weakref.ref(callback)
        return True

    def _task_ends(self) -> None:
        # What this thread evaluates beside the task that ends is the node that has run it.
        outer = torch._C._current_autograd_node()
        after = [] if outer is None else [node for node, _ in outer.next_functions if node is not None]
        if not after:
            # Who is called keeps this, and is not to be kept by it.
            at_end, self._at_end = self._at_end, _nothing
            at_end()
            return
        self._hooks = [node.register_prehook(self._goes_on) for node in after]

    def _goes_on(self, _: object) -> None:
        """Before a node of the outer task."""
        if self._hooks:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            self._ask()


def _nothing() -> None:
    pass


def queue(callback: Callable[[], None]) -> bool:
    """Has it called at the end of the graph task under way, after what was queued before; False when there is none."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True
