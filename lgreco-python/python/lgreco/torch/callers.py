"""Who calls lgreco."""

import sys


def called_by_user() -> bool:
    """Whether the function of this package that is running has been called by Python code that is not PyTorch's."""
    frame = sys._getframe(1)
    while frame is not None and _package_of(frame.f_globals) == "lgreco":
        frame = frame.f_back  # type: ignore[assignment]
    # The engine's own threads have no caller.
    return frame is not None and _package_of(frame.f_globals) != "torch"


def _package_of(names: dict[str, object]) -> str:
    return str(names.get("__name__")).partition(".")[0]
