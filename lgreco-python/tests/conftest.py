"""Tests marked ``slow`` run only if LGRECO_FULL is set."""

import os

import pytest

FULL = bool(os.environ.get("LGRECO_FULL"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: runs where LGRECO_FULL is set")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if FULL:
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: LGRECO_FULL is not set"))
