import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ir_core.autotuning.choice_file import FORMAT, ChoiceFile, Loaded, StoredChoice
from ir_core.autotuning.grounds import Grounds
from ir_core.autotuning.table import Timing, TunedChoice

MACHINE = {"cpu": "A", "threads": "4", "torch": "2.13"}


def stored(signature: str = "x", provider: str = "quick") -> StoredChoice:
    timings = (Timing("quick", {1: 12.1}),)
    choice = TunedChoice("scale", signature, "native", provider, timings, ())
    facts = {"priority": "native", "schema": "(Tensor x)"}
    return StoredChoice(choice, Grounds(facts, {"module toy": "0" * 64}))


@pytest.fixture
def file(tmp_path: Path) -> ChoiceFile:
    file = ChoiceFile(tmp_path / "autotune", MACHINE)
    file.save([stored()])
    return file


def refused(file: ChoiceFile) -> str:
    loaded = file.load()
    assert loaded.choices == ()
    assert loaded.reason is not None
    return loaded.reason


def test_what_is_saved_is_loaded(file: ChoiceFile) -> None:
    assert file.load() == Loaded((stored(),))


def test_only_the_owner_can_read_it_and_nothing_else_is_left(file: ChoiceFile) -> None:
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) & 0o077 == 0
    assert os.listdir(file.path.parent) == [file.path.name]


def test_saving_keeps_other_calls_and_replaces_the_same(file: ChoiceFile) -> None:
    file.save([stored("y"), stored("x", "native")])
    found = {each.choice.signature: each.choice.provider for each in file.load().choices}
    assert found == {"x": "native", "y": "quick"}


def test_grounds_that_choices_share_are_written_once(file: ChoiceFile) -> None:
    file.save([stored("y")])
    assert file.path.read_text().count("module toy") == 1


def test_without_a_file_nothing_is_stored(tmp_path: Path) -> None:
    reason = refused(ChoiceFile(tmp_path / "none", MACHINE))
    assert reason == "nothing is stored for this machine"


def test_the_file_of_another_machine_is_not_used_and_said_to_differ(file: ChoiceFile) -> None:
    other = ChoiceFile(file.path.parent.parent, {**MACHINE, "threads": "8"})
    assert refused(other) == (
        "nothing is stored for this machine; for another, threads is 8, and was 4"
    )


def test_of_several_machines_the_most_similar_is_named(file: ChoiceFile) -> None:
    directory = file.path.parent.parent
    ChoiceFile(directory, {"cpu": "B", "threads": "2", "torch": "2.12"}).save([stored()])
    assert "threads is 8, and was 4" in refused(ChoiceFile(directory, {**MACHINE, "threads": "8"}))


def test_a_file_under_another_machines_name_is_not_used(file: ChoiceFile) -> None:
    other = ChoiceFile(file.path.parent.parent, {**MACHINE, "cpu": "B"})
    file.path.rename(other.path)
    assert "names another machine" in refused(other)


def _flip(path: Path) -> None:
    path.write_text(path.read_text().replace('"provider": "quick"', '"provider": "queer"'))


def _rewrite(**changes: Any) -> Callable[[Path], None]:
    def rewrite(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return rewrite


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".there"))
    path.symlink_to(path.with_suffix(".there"))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_text("{"), "Expecting"),
        (lambda path: path.write_bytes(b"\xff\xfe{"), "codec"),
        (lambda path: path.write_text("[]"), "another format"),
        (_rewrite(format=FORMAT + 1), "another format"),
        (_flip, "damaged"),
        (_rewrite(choices=[]), "damaged"),
        (_rewrite(grounds={}), "damaged"),
        (lambda path: path.chmod(0o620), "others could have written it"),
        (_link, "symbolic links"),
        (_pipe, "no regular file"),
    ],
)
def test_what_is_damaged_or_not_ones_own_is_refused_with_a_reason(
    file: ChoiceFile, damage: Callable[[Path], None], said: str
) -> None:
    damage(file.path)
    assert said in refused(file)


def test_a_damaged_file_is_replaced(file: ChoiceFile) -> None:
    file.path.write_text("{")
    file.save([stored()])
    assert file.load() == Loaded((stored(),))
