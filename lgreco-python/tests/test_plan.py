"""Plans for gradients in arrays of several kinds."""

import array
import doctest
import json
import pathlib
import subprocess
import sys

import numpy
import pytest
import torch

import lgreco
import lgreco._plan
from lgreco import LgrecoError

SHAPES = {"fc1.weight": (64, 48), "fc1.bias": (64,), "fc2.weight": (128, 64)}


def gradients() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) ** 3 for name, shape in SHAPES.items()}


@pytest.mark.parametrize("method", ["qsgd", "topk", "powersgd", "hybrid"])
def test_plans_are_the_same_for_all_kinds_of_arrays(method: str) -> None:
    tensors = gradients()
    made = lgreco.plan(tensors, method=method)
    assert made.proven and made.error <= made.budget and made.ratio > 1
    assert made.settings.keys() == {"fc1.weight", "fc2.weight"}
    numpys = {name: tensor.numpy() for name, tensor in tensors.items()}
    transposed = {name: numpy.asfortranarray(values) for name, values in numpys.items()}
    flat = {name: memoryview(array.array("f", t.flatten().tolist())).cast("B").cast("f", t.shape) for name, t in tensors.items()}
    for others in (numpys, transposed, flat):
        assert lgreco.plan(others, method=method).settings == made.settings


def test_plans_are_saved_as_the_command_writes_them(tmp_path: pathlib.Path) -> None:
    made = lgreco.plan(gradients(), method="topk", solver="dp", alpha=0.5)
    made.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["solver"] == "dp"
    assert str(lgreco.Plan.load(tmp_path / "plan.json")) == str(made)
    assert "fc2.weight" in str(made) and "<table>" in made._repr_html_()
    (tmp_path / "plan.json").write_text('{"version": 1}')
    with pytest.raises(LgrecoError, match="plan.json"):
        lgreco.Plan.load(tmp_path / "plan.json")


def test_what_is_wrong_is_named() -> None:
    for wrong in ({**gradients(), "x": "text"}, {"x": numpy.zeros((40, 40))}, {"x": numpy.full((40, 40), numpy.nan, "f4")}):
        with pytest.raises(LgrecoError, match="x"):
            lgreco.plan(wrong)
    for options in ({"method": "top-k"}, {"solver": "best"}, {"alpha": -1.0}, {"default": 99.0}, {"metric": "l1"}):
        with pytest.raises(LgrecoError):
            lgreco.plan(gradients(), **options)  # type: ignore[arg-type]
    with pytest.raises(LgrecoError):
        lgreco.plan({})


def test_neither_torch_nor_numpy_is_needed() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "import array, lgreco\n"
        "values = memoryview(array.array('f', [i % 7 - 3.0 for i in range(4096)])).cast('B').cast('f', (64, 64))\n"
        "print(lgreco.plan({'w': values}, method='qsgd').settings)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'w': 'qsgd " in found


def test_examples_in_docstrings() -> None:
    failed, tried = doctest.testmod(lgreco._plan)
    assert tried > 0 and failed == 0
