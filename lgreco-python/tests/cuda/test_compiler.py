"""The compiler that kernels need on some GPUs is found among the packages of the interpreter that runs."""

import os
import pathlib
import subprocess
import sys
import venv

import lgreco

PROGRAM = """
import ctypes
from lgreco._lgreco import Device
driver, context, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0 and driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
Device(stream.value)
"""


def test_packages_of_an_environment_that_is_not_active_are_looked_at(tmp_path: pathlib.Path) -> None:
    (packages,) = pathlib.Path(os.environ["VIRTUAL_ENV"]).glob("lib/python3*/site-packages")
    own = tmp_path / "env"
    venv.create(own)
    (own / f"lib/python3.{sys.version_info.minor}/site-packages/nvidia").symlink_to(packages / "nvidia")
    # The crate has no kernels for this GPU.
    environment = os.environ | {"FAKE_CUDA_CAPABILITY": "72", "HOME": str(tmp_path), "PYTHONPATH": str(pathlib.Path(lgreco.__file__).parents[1])}
    del environment["VIRTUAL_ENV"]
    subprocess.run([own / "bin/python", "-c", PROGRAM], env=environment, check=True)
