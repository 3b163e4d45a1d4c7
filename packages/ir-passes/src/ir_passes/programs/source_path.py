"""Where an input of a graph comes from, as steps that can be walked and written as code.

Dynamo spells it as an expression, `L['self']._modules['norm']._parameters['weight']`. It is parsed,
never evaluated as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ROOT = re.compile(r"([LG])\['([A-Za-z_]\w*)'\]")
_STEP = re.compile(
    r"\.(?P<method>size|stride|storage_offset)\(\)"
    r"|\.(?P<attribute>[A-Za-z_]\w*)"
    r"|\[(?P<index>-?\d+)\]"
    r"|\['(?P<key>[^'\\]*)'\]"
)


@dataclass(frozen=True, slots=True)
class SourcePath:
    """A root, local or global, and the steps from it.

    A step is (kind, name): an attribute, an index, a key, or a method without arguments.
    """

    is_local: bool
    root: str
    steps: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, source: str) -> SourcePath | None:
        """The path of a source as Dynamo spells it; None for a form that is not known here."""
        root = _ROOT.match(source)
        if root is None:
            return None
        steps: list[tuple[str, str]] = []
        place = root.end()
        while place < len(source):
            step = _STEP.match(source, place)
            if step is None or step.lastgroup is None:
                return None
            steps.append((step.lastgroup, step[step.lastgroup]))
            place = step.end()
        return cls(root[1] == "L", root[2], tuple(steps))

    def resolve(self, local: Mapping[str, Any], global_: Mapping[str, Any]) -> Any:
        """The value at the path; KeyError, AttributeError or IndexError if there is none."""
        value = (local if self.is_local else global_)[self.root]
        for kind, name in self.steps:
            if kind == "attribute":
                value = getattr(value, name)
            elif kind == "method":
                value = getattr(value, name)()
            else:
                value = value[int(name) if kind == "index" else name]
        return value

    def expression(self) -> str:
        """Python code for a local path, `step[0].size()[1]`."""
        spelled = {"attribute": ".{}", "method": ".{}()", "index": "[{}]", "key": "[{!r}]"}
        return self.root + "".join(spelled[kind].format(name) for kind, name in self.steps)
