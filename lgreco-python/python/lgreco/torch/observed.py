"""Keeps the mean gradients for the next plan in a GPU's memory, and measures them there.

Only the process that plans has these gradients. Each step of a window adds its gradients to the mean, in the stream for
exchanges, so no step waits. The plan is made on another thread and in a second stream. Only error-table rows and norms
are copied to the host, not gradients.
"""

import logging
from collections.abc import Callable

import torch

from lgreco._lgreco import Controller, Device, DeviceWindow, LgrecoError, PlanResult, PlanTask
from lgreco.torch.cuda import Cuda

_LOG = logging.getLogger("lgreco")


class Observed:
    """The mean gradients of one window."""

    def __init__(self, cuda: Cuda, controller: Controller) -> None:
        self._cuda = cuda
        self._controller = controller
        self._aside: Device | None = None
        """The device handle for plans, with the second stream."""
        self.forget()

    def forget(self) -> None:
        """Frees the means, because the window has ended or starts again."""
        self._window: DeviceWindow | None = None
        self._memory: torch.Tensor | None = None
        self._layers: set[int] = set()
        """The layers whose gradients have been kept on the GPU since the window's first step."""
        self._begun: int | None = None
        """The first step of the window."""

    def forget_unless_needed(self) -> None:
        """Frees the means, unless the controller still needs them for the next plan."""
        if not self._controller.observes_elsewhere():
            self.forget()

    def observe(self, device: Device, layers: list[int], gradients: list[torch.Tensor]) -> list[int]:
        """Adds gradients to the means. Returns the positions of gradients that were not added, because memory is missing or the
        layer had no gradient in the window's first step."""
        step = self._controller.window_step()
        if step > 1 and self._window is None and self._begun is None:
            self._begun = self._controller.steps
            _LOG.info("gradients are copied to the host for the next plan, because the host has those of its first steps")
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
            # This step continues, because other ranks wait for this rank's messages. The mean covers only the window's other
            # steps.
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
        """Returns the work of a task, for any thread. If the task's gradients are lost, returns None, and the window
        starts again."""
        window, memory = self._window, self._memory
        if window is None or memory is None:
            if not self._controller.observes_elsewhere():
                return task.run
            _LOG.warning("gradients for a plan are collected anew, as the GPU no longer has them")
            self._controller.forget_observed()
            return None
        # The second stream waits for all gradients that were added.
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
        """Between steps: copies the means to the controller. Waits for the device."""
        if self._window is not None:
            self._window.take_home(device, self._controller, sorted(self._layers))
