"""Tests on an imitated GPU use the models and processes of the parent folder.

Each test function runs only one of its cases, because an imitated GPU is slow. With LGRECO_FULL, test functions run all cases.
"""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("LGRECO_FULL"):
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    # Functions with the same list of cases run different cases of this list.
    chosen = {of_one[number % len(of_one)] for number, of_one in enumerate(cases.values())}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]
