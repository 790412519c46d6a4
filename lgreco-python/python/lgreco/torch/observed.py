"""The gradients that the next plan is made of, in a GPU's memory: their mean is kept there, and measured there.

Only the process that plans has any. The steps of a window blend their gradients with the mean so far, in the stream of the exchange, so
that nothing of a step waits. The plan is made on another thread, in another stream, in memory of torch's: rows and norms come to the
host, and the gradients do not.
"""

import logging
from collections.abc import Callable

import torch

from lgreco._lgreco import Controller, Device, DeviceWindow, LgrecoError, PlanResult, PlanTask
from lgreco.torch.cuda import Cuda

_LOG = logging.getLogger("lgreco")


class Observed:
    """What was observed in the steps of one window, if anything was."""

    def __init__(self, cuda: Cuda, controller: Controller) -> None:
        self._cuda = cuda
        self._controller = controller
        self._aside: Device | None = None
        """That of plans, with a stream of its own."""
        self.forget()

    def forget(self) -> None:
        """The window has ended, or begins anew."""
        self._window: DeviceWindow | None = None
        self._memory: torch.Tensor | None = None
        self._layers: set[int] = set()
        """Those that are here since the window's first step."""
        self._begun: int | None = None
        """The step that the window has begun at."""

    def forget_unless_needed(self) -> None:
        """Of a window that the controller no longer has, nothing is needed."""
        if not self._controller.observes_elsewhere():
            self.forget()

    def observe(self, device: Device, layers: list[int], gradients: list[torch.Tensor]) -> list[int]:
        """Takes the gradients; gives the places of those that it has no room for, or has not had in the window's first step."""
        step = self._controller.window_step()
        if step > 1 and self._window is None and self._begun is None:
            self._begun = self._controller.steps
            _LOG.info("gradients are copied to the host for the next plan, of which the host has the first ones")
        if step == 1 and self._begun != self._controller.steps:
            self._begin(device)
        if self._window is None:
            return list(range(len(layers)))
        places = [place for place, layer in enumerate(layers) if step == 1 or layer in self._layers]
        own = [layers[place] for place in places]
        try:
            with self._cuda.stream():
                self._window.observe(device, own, [gradients[place].data_ptr() for place in places], step)
            self._controller.note_observed(own)
            self._layers.update(own)
        except (LgrecoError, RuntimeError) as error:
            if step == 1:
                _LOG.warning("gradients are copied to the host for the next plan, as the GPU cannot keep them: %s", error)
                return list(range(len(layers)))
            # Others wait for this rank's messages, and the mean is that of the other steps.
            _LOG.warning("gradients are left out of the next plan, as the GPU cannot keep them: %s", error)
        return [place for place in range(len(layers)) if place not in places]

    def _begin(self, device: Device) -> None:
        self.forget()
        self._begun = self._controller.steps
        try:
            with self._cuda.stream():
                memory = self._cuda.allocate(max(DeviceWindow.bytes(self._controller), 16))
                self._window, self._memory = DeviceWindow(device, self._controller, memory.data_ptr()), memory
        except (LgrecoError, MemoryError, RuntimeError) as error:
            _LOG.warning("gradients are copied to the host for the next plan, as the GPU has no room for their mean: %s", error)

    def planning(self, task: PlanTask) -> Callable[[], PlanResult] | None:
        """The work of a task, for any thread; None where what it is about is lost, and is collected anew."""
        window, memory = self._window, self._memory
        if window is None or memory is None:
            if not self._controller.observes_elsewhere():
                return task.run
            _LOG.warning("gradients for a plan are collected anew, as the GPU no longer has them")
            self._controller.forget_observed()
            return None
        # All that was observed comes before it.
        with self._cuda.stream():
            handle = self._cuda.aside()

        def plan() -> PlanResult:
            self._aside = self._aside or Device(handle)
            lent = [memory]

            def allocate(length: int) -> int:
                lent.append(self._cuda.allocate_aside(length))
                return lent[-1].data_ptr()

            return window.plan(self._aside, task, allocate)

        return plan

    def bring_home(self, device: Device) -> None:
        """Between steps: the controller has the means, too, as they are now. Waits for the device."""
        if self._window is not None:
            self._window.take_home(device, self._controller, sorted(self._layers))
