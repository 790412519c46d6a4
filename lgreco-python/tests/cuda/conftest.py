"""These tests use the models and processes of the folder above."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
