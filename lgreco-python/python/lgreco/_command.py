"""The lgreco command, as it is without Python."""

import signal
import sys

from lgreco._lgreco import run_command


def main() -> int:
    """Runs the command with this process's arguments; gives its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would wait for the command to end
    return run_command(["lgreco", *sys.argv[1:]])
