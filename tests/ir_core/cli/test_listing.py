import json

import pytest

import ir_core as ir
from ir_core.cli import main


def test_listing_has_every_op_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [op["name"] for op in data["ops"]] == sorted(ir.registry())
    assert data["platform"] == ir.platform().name


def test_listing_says_why_a_provider_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    op = ir.ops.rms_norm
    absent = [each for each in op.implementations.values() if not each.supported]
    assert main(["list", "rms_norm"]) == 0
    shown = capsys.readouterr().out
    assert absent
    for implementation in absent:
        assert f"cannot run here: {implementation.unsupported_reason}" in shown


def test_listing_names_the_properties(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "paged_attention", "all_reduce", "--json"]) == 0
    attention, reduce = json.loads(capsys.readouterr().out)["ops"]
    assert attention["providers"][0]["properties"] == ["opaque"]
    assert reduce["providers"][0]["properties"] == ["opaque", "batch-invariant"]
    assert "paged_attention.py:" in attention["location"]


def test_listing_shows_layouts_and_who_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "linear", "rms_norm", "--json"]) == 0
    linear, norm = json.loads(capsys.readouterr().out)["ops"]
    assert (linear["weights"], linear["layouts"]) == (["weight"], ["plain", "panel16"])
    read = {each["provider"]: each["layouts"] for each in linear["providers"]}
    assert read["native"] == ["plain", "panel16"]
    assert read["rowwise"] == ["plain"]
    assert (norm["weights"], norm["layouts"], norm["providers"][0]["layouts"]) == ([], [], [])
    assert main(["list", "linear"]) == 0
    shown = capsys.readouterr().out
    assert "  weight in layout plain or panel16\n" in shown
    assert "(opaque, batch-invariant, reads plain)" in shown
