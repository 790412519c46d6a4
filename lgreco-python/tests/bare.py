"""Tests of the package in an environment without any other package. Run this file in such an environment."""

import array
import ctypes
import importlib.util
import json
import math
import pathlib
import shutil
import subprocess
import tempfile

import lgreco

for absent in ("torch", "numpy"):
    assert importlib.util.find_spec(absent) is None, f"{absent} is there"
assert shutil.which("cargo") is None, "cargo is there"

values = array.array("f", (math.sin(i * i) / (1 + i % 7) for i in range(4096)))
plan = lgreco.plan({"fc1.weight": memoryview(values).cast("B").cast("f", (64, 64))}, method="topk", default=0.1)
assert plan.proven and list(plan.settings) == ["fc1.weight"], plan
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "plan.json")
    plan.save(path)
    assert lgreco.Plan.load(path).settings == plan.settings


class Packed:
    """A matrix of f32 that supports only DLPack, by a handmade DLManagedTensor without a deleter."""

    def __init__(self, values: array.array, rows: int) -> None:
        self.values, self.dims = values, (ctypes.c_int64 * 2)(rows, len(values) // rows)
        words = (values.buffer_info()[0], 1, 2 | 2 << 32 | 32 << 40 | 1 << 48, ctypes.addressof(self.dims), 0, 0, 0, 0)
        self.tensor = (ctypes.c_uint64 * 8)(*words)

    def __dlpack__(self) -> object:
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return capsule(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


packed = lgreco.plan({"fc1.weight": Packed(values, 64)}, method="topk", default=0.1)
assert str(packed) == str(plan), packed

told = subprocess.run(["lgreco", "--version"], check=True, capture_output=True, text=True).stdout
assert told.startswith("lgreco "), told
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "gradients.safetensors")
    header = json.dumps({"fc1.weight": {"dtype": "F32", "shape": [64, 64], "data_offsets": [0, 4 * 4096]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + values.tobytes())
    chosen = ["--method", "topk", "--default", "0.1", "--json", f"{folder}/plan.json"]
    subprocess.run(["lgreco", "plan", path, *chosen], check=True, capture_output=True)
    assert lgreco.Plan.load(f"{folder}/plan.json").settings == plan.settings
try:
    import lgreco.torch
except ImportError as error:
    assert "torch" in str(error), error
else:
    raise AssertionError("lgreco.torch is there without torch")
print("without torch, numpy and Rust: planned, saved, loaded, and the command ran")
