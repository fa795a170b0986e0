"""Times numpy's argmax: greedy, the one task that numpy has an operator for."""

import sys
from pathlib import Path

import numpy

sys.path.append(str(Path(__file__).parents[1] / "python"))
from engine_protocol import Skip, serve


def prepare(definition, parameters, rows):
    if definition["task"] != "greedy":
        raise Skip("only argmax is one operator of numpy")
    if definition["dtype"] != "f32":
        raise Skip("has no bf16")
    rows = list(rows)
    return "argmax", lambda row: rows[row].argmax()


serve("numpy", f"numpy {numpy.__version__}", prepare)
