"""The lgreco command of the Python package."""

import signal
import sys

from lgreco._lgreco import run_command


def main() -> int:
    """Runs the command with this process's arguments, and returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would wait for the command to end
    return run_command(["lgreco", *sys.argv[1:]])
