from pathlib import Path

import pytest
from tiny_checkpoints import MAKERS

from serve_shim.errors import RanksError
from serve_shim.ranks.facts import Facts, compare_facts, compare_with_server, gather_facts
from serve_shim.settings.tree import KernelConfig, Settings


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    MAKERS["llama"]().save_pretrained(directory)
    return directory


def test_one_process_agrees_with_itself(checkpoint: Path) -> None:
    settings = Settings(model=str(checkpoint))
    facts = [gather_facts(settings, is_one_node=True) for _ in range(3)]
    compare_facts(facts, "anything")


def test_what_differs_is_named_with_both_values_and_the_rank() -> None:
    facts = [{"torch": "2.13", "same": "1"}, {"torch": "2.13", "same": "1"}, {"torch": "2.12"}]
    with pytest.raises(RanksError) as error:
        compare_facts(facts, "what they compute with")
    text = str(error.value)
    assert "ranks do not agree about what they compute with" in text
    assert "`torch` is 2.13 on rank 0, and 2.12 on rank 2" in text
    assert "`same` is 1 on rank 0, and absent on rank 2" in text


def test_another_model_than_the_servers_is_an_error() -> None:
    server = {"code of serve_shim": "a", "checkpoint file x": "1"}
    compare_with_server(server, {**server, "op of ranks alone": "2"})
    with pytest.raises(RanksError, match=r"`checkpoint file x` is 1 for the server, and 2 on rank"):
        compare_with_server(server, {**server, "checkpoint file x": "2"})


def test_no_more_than_some_differences_are_told() -> None:
    with pytest.raises(RanksError, match="and 15 more"):
        compare_facts([{str(number): "a" for number in range(20)}, {}], "numbers")


def test_between_nodes_a_checkpoint_is_its_bytes(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for source in checkpoint.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    mine, copy = (
        gather_facts(Settings(model=str(place)), is_one_node=False)
        for place in (checkpoint, tmp_path)
    )
    assert _weights(mine) == _weights(copy)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    changed = gather_facts(Settings(model=str(tmp_path)), is_one_node=False)
    assert _weights(changed) != _weights(copy)
    assert changed["checkpoint file config.json"] == copy["checkpoint file config.json"]


def test_on_one_node_a_copy_is_another_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    for source in checkpoint.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    mine, copy = (
        gather_facts(Settings(model=str(place)), is_one_node=True)
        for place in (checkpoint, tmp_path)
    )
    assert _weights(mine) != _weights(copy)


def test_settings_variables_and_priorities_are_facts(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(model=str(checkpoint))
    before = gather_facts(settings, is_one_node=True)
    monkeypatch.setenv("IR_SOMETHING", "1")
    priority = KernelConfig(ir_op_priority={"rms_norm": ("native",)})
    other = settings.model_copy(update={"seed": 3, "kernel_config": priority})
    after = gather_facts(other, is_one_node=True)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert changed == {
        "settings.seed",
        "settings.kernel_config.ir_op_priority",
        "settings.kernel_config.ir_op_priority.rms_norm",
        "variable IR_SOMETHING",
    }


def test_no_key_of_the_server_is_a_fact(checkpoint: Path) -> None:
    settings = Settings.model_validate({"model": str(checkpoint), "api_key": ["hunter2"]})
    facts = gather_facts(settings, is_one_node=True)
    assert not [name for name, text in facts.items() if "hunter2" in text or "api_key" in name]


def _weights(facts: Facts) -> str:
    return facts["checkpoint file model.safetensors"]
