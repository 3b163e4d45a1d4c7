"""Dynamo's spelling of an input's origin is parsed, walked and written as code, never evaluated."""

from types import SimpleNamespace

import pytest
import torch

from ir_passes.programs.source_path import SourcePath


@pytest.mark.parametrize(
    ("source", "expression"),
    [
        ("L['x']", "x"),
        ("L['step'][0]", "step[0]"),
        ("L['step'].slots.size()[1]", "step.slots.size()[1]"),
        ("L['kv']['a b'][-1]", "kv['a b'][-1]"),
        ("L['self']._modules['norm']._parameters['w']", "self._modules['norm']._parameters['w']"),
    ],
)
def test_known_forms_become_code(source: str, expression: str) -> None:
    path = SourcePath.parse(source)
    assert path is not None
    assert path.expression() == expression


@pytest.mark.parametrize(
    "source",
    ["", "x", "L['a b']", "L['x'].pop()", "L['x'] + 1", "L['x'][i]", "L['x']['\\'']", "Q['x']"],
)
def test_other_forms_are_not_paths(source: str) -> None:
    assert SourcePath.parse(source) is None


def test_path_is_walked() -> None:
    layer = SimpleNamespace(weights={"w": [torch.zeros(3, 5)]})
    path = SourcePath.parse("L['self'].weights['w'][0].size()[1]")
    assert path is not None
    assert path.resolve({"self": layer}, {}) == 5
    everywhere = SourcePath.parse("G['TABLE'][1]")
    assert everywhere is not None
    assert everywhere.resolve({}, {"TABLE": (1, 2)}) == 2
    with pytest.raises(KeyError):
        everywhere.resolve({}, {})
