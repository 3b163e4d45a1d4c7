"""The story of one layer, on a tiny checkpoint."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_checkpoints import make_model
from torch.fx import Graph

import ir_core as ir
from ir_passes.config import DynamicShapesType
from tools.graph.__main__ import main
from tools.graph.layer import nodes_of_layer
from tools.graph.subject import Subject

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", autouse=True)
def usual_mode() -> Iterator[None]:
    yield
    ir.set_execution_mode("eager")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("llama")
    make_model("llama").save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def graph(directory: str) -> Graph:
    subject = Subject.load(directory, "float32", "eager", DynamicShapesType.UNBACKED)
    return subject.trace.whole.module.graph


def story(capsys: Captured, *arguments: str) -> dict[str, str]:
    """What the command prints, by heading."""
    assert main(arguments) == 0
    title, *sections = capsys.readouterr().out.split("\n== ")
    parts = (section.partition("\n") for section in sections)
    return {"": title, **{heading: text for heading, _, text in parts}}


def test_layers_follow_each_other_and_leave_out_what_is_around_them(graph: Graph) -> None:
    body = [n for n in graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    layers = [nodes_of_layer(graph, layer) for layer in range(3)]
    together = [node for layer in layers for node in layer]
    start = body.index(together[0])
    assert body[start : start + len(together)] == together
    assert 0 < start < start + len(together) < len(body)
    assert [len(layer) for layer in layers[1:]] == [len(layers[1])] * 2
    assert nodes_of_layer(graph, 3) == []


def test_story_begins_with_the_layer_as_traced(directory: str, capsys: Captured) -> None:
    told = story(capsys, directory, "--layer", "1", "--dtype", "float32")
    assert told[""].startswith(f"Layer 1 of 3 of {Path(directory).name}, float32, shapes unbacked")
    traced = told["As traced"]
    assert traced.count("ir.fused_add_rms_norm(") == 2
    assert traced.count("ir.paged_attention(") == 1
    assert "self.layers.1.input_norm.weight" in traced
    assert "self.layers.2." not in traced


def test_story_shows_each_pass_that_runs_with_its_places(directory: str, capsys: Captured) -> None:
    told = story(capsys, directory, "--layer", "0", "--dtype", "float32")
    passes = [heading.removeprefix("After ") for heading in told if heading.startswith("After ")]
    table = told["Requested and effective passes, whole model"]
    ran = re.findall(r"^(\w+)\S* +default +ran", table, re.MULTILINE)
    assert passes == ran != []
    # The first norm has no residual to add.
    looked_at = told["What the passes looked at in the layer"]
    assert re.search(r"^fuse_add_rms_norm +rms_norm +\S+rms_norm\.py:\d+ +\S", looked_at, re.M)


def test_story_ends_with_lowered_pieces_and_their_reasons(directory: str, capsys: Captured) -> None:
    with ir.priority({"fused_add_rms_norm": ["aiter", "native"], "silu_and_mul": ["native"]}):
        told = story(capsys, directory, "--dtype", "float32")
    pieces = {heading: text for heading, text in told.items() if "lowered" in heading}
    assert any(re.search(r"2 of 4 pieces", heading) for heading in pieces)
    for text in pieces.values():
        graph, _, selections = text.partition("\n\n")
        assert "ir." not in graph
        assert re.search(r"fused_add_rms_norm +native +aiter: \S", selections)
    assert re.search(
        r"paged_attention\S* .* (rotary_)?paged_attention ", told["Between the pieces"]
    )


def test_story_tells_what_became_of_clones(directory: str, capsys: Captured) -> None:
    kernel = ir.ops.fused_add_rms_norm.implementations["vllm_c"]
    if not kernel.supported:
        pytest.skip(f"`vllm_c`: {kernel.unsupported_reason}")
    with ir.priority({"fused_add_rms_norm": ["vllm_c"]}):
        told = story(capsys, directory, "--dtype", "float32")
    text = "".join(text for heading, text in told.items() if "lowered" in heading)
    assert re.search(r"^clone\S* +\S+:\d+ +removed$", text, re.MULTILINE)


def test_story_lists_guards_with_their_lines(directory: str, capsys: Captured) -> None:
    guards = story(capsys, directory, "--dtype", "float32", "--shapes", "backed")[
        "Guards, whole model"
    ]
    assert guards.splitlines()[0].split() == ["guard", "cause", "line"]
    assert "trace" in guards


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "3"], "has no layer 3; its 3 layers are counted from 0 to 2"),
        (["--layer", "-1"], "has no layer -1"),
        (["--backend", "eagr"], "did you mean `eager`"),
    ],
)
def test_what_cannot_be_told_is_an_error(
    directory: str, arguments: list[str], message: str, capsys: Captured
) -> None:
    assert main([directory, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_missing_model_is_an_error(tmp_path: Path, capsys: Captured) -> None:
    assert main([str(tmp_path / "absent")]) == 2
    assert capsys.readouterr().err.startswith("graph: error: ")
