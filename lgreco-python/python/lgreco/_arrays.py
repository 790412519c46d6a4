"""Finds the values of other libraries' arrays in memory."""

import ctypes
from typing import Any, NamedTuple, TypeAlias

from lgreco._dlpack import read
from lgreco._errors import of_layer

Array: TypeAlias = Any
"""A tensor of torch, an array of numpy, or any object with DLPack or with a buffer of f32 or f16 values."""


class Place(NamedTuple):
    """The location of contiguous values in the host's memory."""

    dims: list[int]
    dtype: str
    address: int
    owner: Any
    """The object that keeps the values alive."""


_FORMATS = {"f": "float32", "e": "float16"}


def place(name: str, array: Array) -> Place:
    """Finds the values of a layer, and copies them if they are not contiguous or not in the host's memory."""
    if array is None:
        raise of_layer(name, "the layer has no gradient: leave it out")
    if hasattr(array, "data_ptr"):
        if array.is_meta or "strided" not in str(array.layout):
            kind = "on the meta device, without values" if array.is_meta else f"of layout {array.layout}, expected torch.strided"
            raise of_layer(name, f"the tensor is {kind}")
        tensor = array.detach().cpu().contiguous()
        return Place(list(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.data_ptr(), tensor)
    if hasattr(array, "__array_interface__"):
        import numpy

        contiguous = numpy.ascontiguousarray(array)
        return Place(list(contiguous.shape), str(contiguous.dtype), contiguous.ctypes.data, contiguous)
    if hasattr(array, "__dlpack__"):
        return Place(*read(name, array))
    try:
        view = memoryview(array)
    except TypeError:
        raise of_layer(name, f"found a {type(array).__name__}, expected a tensor of torch, an array of numpy, or an object with DLPack or a buffer") from None
    dtype = _FORMATS.get(view.format)
    if dtype is None:
        raise of_layer(name, f"the values have format {view.format!r}, expected float32 ('f') or float16 ('e'): convert them")
    copied = (ctypes.c_char * view.nbytes).from_buffer_copy(view)
    return Place(list(view.shape or (len(view),)), dtype, ctypes.addressof(copied), copied)
