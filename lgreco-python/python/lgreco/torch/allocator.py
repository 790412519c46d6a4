"""Memory that the C library's allocator keeps."""

import ctypes
from functools import cache


@cache
def _trim() -> "ctypes._NamedFuncPointer | None":
    try:
        trim = ctypes.CDLL(None).malloc_trim  # of glibc
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return trim


def give_back() -> None:
    """Gives memory that has been freed back to the system, where the C library would keep it for later."""
    if (trim := _trim()) is not None:
        trim(0)
