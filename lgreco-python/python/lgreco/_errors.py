"""Errors that are found in Python code."""

from lgreco._lgreco import LgrecoError


def of_layer(name: str, text: str) -> LgrecoError:
    """Makes an error about a layer, for the caller to raise."""
    error = LgrecoError(f"{name}: {text}")
    error.layer = name
    return error
