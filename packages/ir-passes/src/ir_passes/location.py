"""Where a node comes from: the line of a model's source, and an input's path in the model."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.fx import Node

import ir_core

UNKNOWN_LINE = "an unknown line"
INPUT_PATH = "ir_input_path"
"""Key in `meta` of a placeholder: the input's path in the model, `self.norm.weight`."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_GENERATED_CALLER = "<ir op "
_LIBRARIES = tuple(str(Path(str(each.__file__)).parent) for each in (torch, ir_core))


def line_of(node: Node) -> str:
    """ "file:line" of the innermost frame outside torch and ir-core; UNKNOWN_LINE without one."""
    for file, line in reversed(_FRAME.findall(node.stack_trace or "")):
        if not file.startswith((_GENERATED_CALLER, *_LIBRARIES)):
            return f"{file}:{line}"
    return UNKNOWN_LINE
