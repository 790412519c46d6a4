"""What the package does where there is nothing but Python, to be run there."""

import array
import importlib.util
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
told = subprocess.run(["lgreco", "--version"], check=True, capture_output=True, text=True).stdout
assert told.startswith("lgreco "), told
try:
    import lgreco.torch
except ImportError as error:
    assert "torch" in str(error), error
else:
    raise AssertionError("lgreco.torch is there without torch")
print("without torch, numpy and Rust: planned, saved, loaded, and the command ran")
