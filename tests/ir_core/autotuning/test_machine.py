from pathlib import Path

import torch

from ir_core.autotuning.machine import cpu_model, machine_facts


def test_facts_are_texts_and_the_same_each_time() -> None:
    facts = machine_facts()
    assert facts == machine_facts()
    assert all(isinstance(each, str) and each for each in facts.values())
    assert facts["threads"] == str(torch.get_num_threads())


def test_the_model_of_the_first_processor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Quick 9000: X\nmodel name\t: Other\n")
    assert cpu_model(path) == "Quick 9000: X"


def test_without_a_model_something_is_said(tmp_path: Path) -> None:
    assert cpu_model(tmp_path / "none")
