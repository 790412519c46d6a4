"""Tests plans for gradients in arrays of several kinds."""

import array
import doctest
import json
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import numpy
import pytest
import torch
from linear import SHAPES, Linear
from linear import gradients as linear_gradients
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel as DDP

import lgreco
import lgreco._plan
from lgreco import LgrecoError
from lgreco.torch import LGreCoState, lgreco_hook

LAYERS = {"fc1.weight": (64, 48), "fc1.bias": (64,), "fc2.weight": (128, 64)}


def gradients() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) ** 3 for name, shape in LAYERS.items()}


@pytest.mark.parametrize("method", ["qsgd", "topk", "powersgd", "hybrid", "sidco", "clt-k", "loco", "adacomp", "eden", "qsgd,topk,sidco"])
def test_plans_are_the_same_for_all_kinds_of_arrays(method: str) -> None:
    tensors = gradients()
    made = lgreco.plan(tensors, method=method)
    assert made.proven and made.size <= made.size_limit and made.ratio > 1
    assert made.settings.keys() == {"fc1.weight", "fc2.weight"}
    numpys = {name: tensor.numpy() for name, tensor in tensors.items()}
    transposed = {name: numpy.asfortranarray(values) for name, values in numpys.items()}
    flat = {name: memoryview(array.array("f", t.flatten().tolist())).cast("B").cast("f", t.shape) for name, t in tensors.items()}
    for others in (numpys, transposed, flat):
        assert lgreco.plan(others, method=method).settings == made.settings


def test_candidates_stay_in_their_range_beside_a_default() -> None:
    tensors = {"large": gradients()["fc1.weight"], "small": gradients()["fc2.weight"] * 1e-3}
    for default in (None, 4):
        made = lgreco.plan(tensors, method="qsgd", default=default, candidates=(3, 5, 1))
        assert made.settings == {"large": "qsgd 5", "small": "qsgd 3"}, default


class Packed:
    """An array that supports only DLPack."""

    def __init__(self, values: Any, device: int = 1) -> None:
        self.values, self.device = values, device

    def __dlpack__(self) -> Any:
        return self.values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plans_for_dlpack_are_those_for_tensors(dtype: torch.dtype) -> None:
    tensors = {name: values.to(dtype) for name, values in gradients().items()}
    made = lgreco.plan(tensors)
    assert made.settings.keys() == {"fc1.weight", "fc2.weight"}
    part = torch.zeros(3, 128, 4, 64, dtype=dtype)
    part[1, :, 2, :] = tensors["fc2.weight"]
    strided = {**tensors, "fc1.weight": tensors["fc1.weight"].T.contiguous().T, "fc2.weight": part[1, :, 2, :]}
    assert not strided["fc1.weight"].is_contiguous() and not strided["fc2.weight"].is_contiguous()
    for others in (tensors, strided):
        assert str(lgreco.plan({name: Packed(values) for name, values in others.items()})) == str(made)
    repeated = torch.linspace(-1, 1, 64, dtype=dtype).expand(48, 64)
    assert str(lgreco.plan({"x": Packed(repeated)})) == str(lgreco.plan({"x": repeated.contiguous()}))


def test_dlpack_that_cannot_be_read_is_named() -> None:
    for values, device, said in (
        (torch.zeros(40, 40, dtype=torch.int32), 1, "x: .* code 0, 32 bits"),
        (torch.zeros(40, 40, dtype=torch.float64), 1, "x: .* code 2, 64 bits"),
        (torch.zeros(40, 40), 2, "x: .* on a device"),
    ):
        with pytest.raises(LgrecoError, match=said):
            lgreco.plan({"x": Packed(values, device)})


def test_plans_are_saved_as_the_command_writes_them(tmp_path: pathlib.Path) -> None:
    made = lgreco.plan(gradients(), method="topk", solver="dp", alpha=0.5)
    made.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["solver"] == "dp"
    assert str(lgreco.Plan.load(tmp_path / "plan.json")) == str(made)
    assert "fc2.weight" in str(made) and "<table>" in made._repr_html_()
    (tmp_path / "plan.json").write_text('{"version": 1}')
    with pytest.raises(LgrecoError, match="plan.json"):
        lgreco.Plan.load(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_bytes(bytes(range(256)))
    with pytest.raises(LgrecoError, match="plan.json: 'utf-8' codec"):
        lgreco.Plan.load(tmp_path / "plan.json")
    (tmp_path / "table.json").write_text('{"version": 1, "metric": "l2", "layers": []}')
    with pytest.raises(LgrecoError, match="table.json: this is a table, expected a plan"):
        lgreco.Plan.load(tmp_path / "table.json")
    for read in (lgreco.Plan.load, lgreco.plan):
        with pytest.raises(LgrecoError, match="none.json: No such file"):
            read(tmp_path / "none.json")


def test_the_papers_way_is_a_word() -> None:
    by_word = lgreco.plan(gradients(), method="qsgd", solver="paper")
    by_hand = lgreco.plan(gradients(), method="qsgd", solver="dp", metric="l2", budget="uniform")
    assert (by_word.settings, by_word.error, by_word.budget) == (by_hand.settings, by_hand.error, by_hand.budget)
    other = lgreco.plan(gradients(), method="qsgd", solver="paper", size="uniform")
    assert other.size_limit is not None and other.budget is None


def test_groups_and_fixed_settings_are_kept() -> None:
    first, second = "fc1.weight", "fc2.weight"
    tensors = {name: values * (10 if name == first else 1) for name, values in gradients().items()}
    free = lgreco.plan(tensors, method="qsgd")
    assert free.settings[first] != free.settings[second], "the group asks for nothing"
    tied = lgreco.plan(tensors, method="qsgd", groups=[[first, second]])
    assert tied.proven and tied.settings[first] == tied.settings[second] and tied.size <= free.size_limit
    fixed = lgreco.plan(tensors, method="qsgd", fixed={first: "qsgd 2"})
    assert fixed.settings[first] == "qsgd 2" != free.settings[first]
    with pytest.raises(LgrecoError, match="layer `nose`: the table has no such layer"):
        lgreco.plan(tensors, groups=[[first, "nose"]])
    with pytest.raises(LgrecoError, match="no option is `qsgd 9`"):
        lgreco.plan(tensors, method="qsgd", fixed={first: "qsgd 9"})
    with pytest.raises(LgrecoError, match="groups is 3, expected lists of the names of layers"):
        lgreco.plan(tensors, groups=3)  # type: ignore[arg-type]


def test_sizes_may_be_limited() -> None:
    by_error = lgreco.plan(gradients(), method="topk", metric="l2", default=0.05, budget="uniform")
    uniform = lgreco.plan(gradients(), method="topk", metric="l2", default=0.05, size="uniform")
    assert by_error.budget is not None and by_error.size_limit is None and uniform.budget is None
    assert uniform.size_limit is not None and by_error.size < uniform.size <= uniform.size_limit
    assert uniform.proven and uniform.error < by_error.budget and uniform.lower_bound <= uniform.error
    assert lgreco.plan(gradients(), method="topk", metric="l2", default=0.05, size=uniform.size_limit).error <= 1.0001 * uniform.error
    assert lgreco.plan(gradients(), method="topk", metric="l2", default=0.05, size="uniform", alpha=2.0).error < uniform.error
    assert lgreco.plan(gradients(), method="topk", metric="l2", budget=by_error.budget).size <= by_error.size
    few = lgreco.plan(gradients(), method="topk", metric="l2", default=0.05, budget="uniform", widths=["full", 4, 2])
    assert few.size < by_error.size and any("bits" in setting for setting in few.settings.values())
    both: list[dict[str, Any]] = [
        {"budget": 1.0, "size": 4000}, {"size": "largest"}, {"size": 4000, "alpha": 2.0}, {"size": 1}, {"widths": [0]},
    ]
    for options in both:
        with pytest.raises(LgrecoError):
            lgreco.plan(gradients(), method="topk", **options)


def safetensors(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes a safetensors file without the library of that name."""
    header, end = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t.numpy().tobytes() for t in tensors.values()))


def _payload_bytes(rank: int, settings: dict[str, str]) -> int:
    ddp = DDP(Linear())
    state = LGreCoState(None, ddp, settings=settings, start_iter=2, error_feedback=False)
    ddp.register_comm_hook(state, lgreco_hook)
    for step in range(3):
        ddp(linear_gradients(rank, step)).backward()
    # The bytes of the two uncompressed first steps do not count.
    return sum(layer["bytes_out"] for name, layer in state.metrics().items() if name in settings) - 2 * sum(
        4 * torch.Size(SHAPES[name]).numel() for name in settings
    )


def test_the_commands_plans_are_what_is_sent(tmp_path: pathlib.Path) -> None:
    safetensors(tmp_path / "gradients.safetensors", linear_gradients(0, 0))
    command = pathlib.Path(sys.executable).with_name("lgreco")
    files = [str(tmp_path / "gradients.safetensors"), "--json", str(tmp_path / "plan.json")]
    subprocess.run([command, "plan", *files, "--method", "topk", "--size", "uniform"], check=True, capture_output=True)
    plan = lgreco.Plan.load(tmp_path / "plan.json")
    assert plan.settings == lgreco.plan(linear_gradients(0, 0), method="topk", size="uniform").settings
    assert len(set(plan.settings.values())) > 1
    for sent in on_ranks(2, _payload_bytes, plan.settings):
        assert 8 * sent == plan.size
    failed = subprocess.run([command, "plan", str(tmp_path / "none")], capture_output=True, text=True)
    assert failed.returncode == 2 and "No such file" in failed.stderr


def test_plans_as_pictures(tmp_path: pathlib.Path) -> None:
    lgreco.plan(gradients()).plot(tmp_path / "plan.svg")
    assert "fc2.weight" in (tmp_path / "plan.svg").read_text()


def test_plans_as_pages(tmp_path: pathlib.Path) -> None:
    hostile = "<script>alert('1')</script>"
    plan = lgreco.plan({hostile: gradients()["fc2.weight"], "fc1.weight": gradients()["fc1.weight"]})
    page = plan.html()
    assert hostile not in page and "&lt;script&gt;alert(&#39;1&#39;)" in page
    assert "Size and error" in page and "relative error" in page and "128×64" in page
    plan.save(tmp_path / "plan.json")
    # Loaded and unpickled plans have only the plan file, without the error table.
    for other in (lgreco.Plan.load(tmp_path / "plan.json"), pickle.loads(pickle.dumps(plan))):
        page = other.html()
        assert hostile not in page and "Size and error" not in page and plan.settings["fc1.weight"].split()[0] in page


WRONG: list[tuple[Any, str]] = [
    ("text", "^x: found a str, expected a tensor"),
    (None, "^x: the layer has no gradient: leave it out"),
    (numpy.zeros((40, 40)), "^x: values are float64"),
    (numpy.full((40, 40), numpy.nan, "f4"), "^x: element 0 is NaN"),
    (torch.zeros(40, 40).to_sparse(), "^x: the tensor is of layout torch.sparse_coo"),
    (torch.eye(40).to_sparse_csr(), "^x: the tensor is of layout torch.sparse_csr"),
    (torch.zeros(40, 40, device="meta"), "^x: the tensor is on the meta device"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG)
def test_the_layer_at_fault_is_named(wrong: Any, said: str) -> None:
    with pytest.raises(LgrecoError, match=said) as raised:
        lgreco.plan({**gradients(), "x": wrong})
    assert raised.value.layer == "x"


def test_what_is_wrong_is_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"method": "top-k"}, "method"), ({"solver": "best"}, "solver"), ({"alpha": -1.0}, "alpha is -1"), ({"default": 99.0}, "99"),
        ({"budget": "size"}, r"budget is \"size\", expected one of uniform"), ({"alpha": "2"}, "alpha is '2', expected a number"),
        ({"metric": "l1"}, "metric"), ({"size": 1.5}, "size is 1.5, expected"), ({"random_seed": -1}, "random_seed is -1"),
    ]
    for options, said in wrong:
        with pytest.raises(LgrecoError, match=said):
            lgreco.plan(gradients(), **options)
    for small in ({}, {"x": torch.ones(4, 4)}, {"x": torch.ones(4096)}):
        with pytest.raises(LgrecoError, match=f"none of the {len(small)} layers is large enough"):
            lgreco.plan(small)
    with pytest.raises(TypeError, match="a layer's name is 1, expected text"):
        lgreco.plan({1: torch.ones(40, 40)})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="an array per layer's name, or the path"):
        lgreco.plan([torch.ones(40, 40)])  # type: ignore[arg-type]


def test_files_are_planned_as_the_command_does(tmp_path: pathlib.Path) -> None:
    safetensors(tmp_path / "gradients.safetensors", gradients())
    for path in (tmp_path / "gradients.safetensors", str(tmp_path)):
        assert lgreco.plan(path, method="topk").settings == lgreco.plan(gradients(), method="topk").settings
    with pytest.raises(LgrecoError, match="none.safetensors: "):
        lgreco.plan(tmp_path / "none.safetensors")


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
