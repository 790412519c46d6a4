"""Errors that Python finds."""

from lgreco._lgreco import LgrecoError


def of_layer(name: str, text: str) -> LgrecoError:
    """What is wrong with a layer, for whoever raises it."""
    error = LgrecoError(f"{name}: {text}")
    error.layer = name
    return error
