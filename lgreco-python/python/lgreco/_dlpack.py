"""Reads arrays that support only DLPack, without numpy: https://dmlc.github.io/dlpack/latest/c_api.html."""

import ctypes
import math
from typing import Any

from lgreco._errors import of_layer

_HOSTS = (1, 3)
"""DLPack's codes of host memory: ordinary and page-locked."""
_FORMATS = {(2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16"}
"""Element types by DLPack's type code and number of bits."""


class _Tensor(ctypes.Structure):
    """DLTensor, the first field of DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dims", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def read(name: str, array: Any) -> tuple[list[int], str, int, Any]:
    """Returns dims, type and address of contiguous values, and the object that keeps them alive. Copies strided
    values."""
    if array.__dlpack_device__()[0] not in _HOSTS:
        raise of_layer(name, "the values are on a device: copy them to the host's memory first")
    # The capsule keeps ownership of the tensor, because this code does not rename the capsule as a consumer would.
    capsule = array.__dlpack__()
    tensor = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    dtype = _FORMATS.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        of = f"code {tensor.code}, {tensor.bits} bits and {tensor.lanes} lanes"
        raise of_layer(name, f"the values have DLPack's type {of}, expected float32, float16 or bfloat16: convert them")
    dims = tensor.shape[: tensor.dims]
    address, size = (tensor.data or 0) + tensor.offset, tensor.bits // 8
    strides = tensor.strides[: tensor.dims] if tensor.strides else _contiguous(dims)
    if 0 in dims or all(dim == 1 or here == there for dim, here, there in zip(dims, strides, _contiguous(dims))):
        return dims, dtype, address, capsule
    copied = (ctypes.c_char * (math.prod(dims) * size))()
    _copy(ctypes.addressof(copied), address, dims, strides, size)
    return dims, dtype, ctypes.addressof(copied), copied


def _contiguous(dims: list[int]) -> list[int]:
    """The strides of contiguous values."""
    return [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]


def _copy(to: int, start: int, dims: list[int], strides: list[int], size: int) -> int:
    """Copies values of ``size`` bytes to consecutive addresses, and returns the end of the copy."""
    end = to + math.prod(dims) * size
    if strides == _contiguous(dims):
        ctypes.memmove(to, start, end - to)
    elif len(dims) == 1 and strides[0] > 0:
        last = (dims[0] - 1) * strides[0]
        _values(to, dims[0], size)[:] = _values(start, last + 1, size)[:: strides[0]]
    else:
        for at in range(dims[0]):
            to = _copy(to, start + at * strides[0] * size, dims[1:], strides[1:], size)
    return end


def _values(address: int, count: int, size: int) -> memoryview:
    memory = (ctypes.c_char * (count * size)).from_address(address)
    return memoryview(memory).cast("B").cast("I" if size == 4 else "H")
