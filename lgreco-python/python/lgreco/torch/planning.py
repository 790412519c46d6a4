"""Decides when the work of a plan begins, and on which thread. Also returns the memory that a new plan has freed to the
system."""

import ctypes
import logging
import math
import numbers
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache

from lgreco._lgreco import Controller, PlanResult
from lgreco.torch.cuda import Cuda
from lgreco.torch.device import Buckets
from lgreco.torch.effects import PLANS
from lgreco.torch.layers import Layer
from lgreco.torch.options import Options

_LOG = logging.getLogger("lgreco")
_LEAD = 10
"""Default ``lead`` for a large model: number of steps from the beginning of planning to the step of the plan."""
_LARGE = 1 << 22
"""Smallest number of elements of a large model, whose planning takes at least a tenth of a second."""


def default_lead(layers: Sequence[Layer], cuda: Cuda | None, options: Options) -> int:
    """The default of ``lead``, which is above 0 if planning would noticeably delay a step."""
    elements = sum(math.prod(layer.shape) for layer in layers)
    looks_at_gradients = options.get("settings") is None and (options.get("policy") or "lgreco") in (*PLANS, "accordion")
    if cuda is not None or not looks_at_gradients or elements < _LARGE or options.get("objective") == "seconds":
        return 0
    steps = (options.get("start_iter", 100), options.get("period", 1000))
    soonest = min((int(step) for step in steps if isinstance(step, numbers.Integral) and step > 0), default=0)
    return min(_LEAD, soonest // 2)


class Planning:
    """Makes plans on a thread, on the rank that measures gradients. Other ranks make no plans.

    Without this thread, the controller would make each plan during the step in which the plan takes effect.
    """

    def __init__(self, leads: bool, device: Buckets | None) -> None:
        self.leads = leads
        """Whether plans begin before the step in which they take effect (``lead``)."""
        self._device = device
        self._thread: ThreadPoolExecutor | None = None
        self.under_way: Future[PlanResult] | None = None

    def begin(self, controller: Controller) -> None:
        """Begins the next plan if the gradients of its window are complete. With gradients on a GPU and without ``lead``,
        waits for the plan."""
        task = controller.take_plan_task() if self.under_way is None else None
        work = None
        if task is not None:
            work = task.run if self._device is None else self._device.observed.planning(task)
        del task  # A task holds gradients.
        if work is not None:
            self._thread = self._thread or ThreadPoolExecutor(1, "lgreco-plan")
            self.under_way = self._thread.submit(work)
            del work
            if not self.leads:
                wait([self.under_way])
                self.take_over(controller)

    def take_over(self, controller: Controller) -> None:
        """Gives the controller a finished plan. Waits for a plan that is due, so that every run switches settings at the
        same step."""
        if self.under_way is None or not (self.under_way.done() or controller.is_plan_due()):
            return
        planning, self.under_way = self.under_way, None
        if (error := planning.exception()) is None:
            controller.hand_in(planning.result())
            return
        # After a failure on the thread, the controller plans in the step in which the plan takes effect, and reports failures to
        # all ranks. The error is logged as text, because the exception would keep the task's gradients alive.
        _LOG.warning("planning aside has failed, and is done again: %s", repr(error))
        del planning, error
        if self._device is not None:
            self._device.bring_observed_home()


@cache
def _malloc_trim() -> "ctypes._NamedFuncPointer | None":
    try:
        trim = ctypes.CDLL(None).malloc_trim  # of glibc
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return trim


def trim_memory() -> None:
    """Returns freed memory to the system. Otherwise the C library would keep the memory that the old settings needed."""
    if (trim := _malloc_trim()) is not None:
        trim(0)
