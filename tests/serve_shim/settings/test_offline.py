"""Nothing that a model without a server is given may do nothing in silence."""

import ast
from pathlib import Path

import pytest

import ir_passes
import serve_shim
from ir_passes.config import PassConfig
from serve_shim.errors import SettingsError
from serve_shim.settings import Settings, resolve_arguments
from serve_shim.settings.inert import find_row
from serve_shim.settings.offline import find_misplaced
from serve_shim.settings.schema import Leaf, Table, settings_schema, walk
from serve_shim.settings.source import DEFAULT, Given

ROOT = settings_schema(Settings)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"host": "127.0.0.1"}, "host"),
        ({"port": 80}, "port"),
        ({"uds": "/tmp/s"}, "uds"),  # noqa: S108 - never opened
        ({"api_key": "hunter2"}, "api_key"),
        ({"api-key-file": "keys"}, "api-key-file"),
        ({"limits": {"max_n": 3}}, "limits.max_n"),
        ({"log_level": "DEBUG"}, "log_level"),
        ({"served_model_name": "m"}, "served_model_name"),
        ({"max_queue": 3}, "max_queue"),
        ({"scheduler": {"max_num_seqs": 3, "max_queue": 3}}, "scheduler.max_queue"),
    ],
)
def test_what_only_a_server_acts_on_is_refused_by_name(arguments: dict[str, object], name: str):
    with pytest.raises(SettingsError) as error:
        resolve_arguments(arguments)
    assert str(error.value) == f"`{name}`: only a server acts on it; remove it"


def test_batch_invariance_is_led_to_the_switch_of_the_process():
    with pytest.raises(SettingsError, match=r"IR_BATCH_INVARIANT=1 .* `ir_core\.set_batch_inv"):
        resolve_arguments({"batch_invariant": True})


def test_every_misplaced_setting_is_named_at_once():
    with pytest.raises(SettingsError, match=r"(?s)2 settings are wrong.*`port`.*`disable_docs`"):
        resolve_arguments({"port": 1, "disable_docs": True, "seed": 3})


def test_every_setting_is_read_by_the_engine_or_refused():
    package = Path(serve_shim.__file__).parent
    ours = [package / name for name in ("engine", "compilation", "ranks")]
    folders = [*ours, Path(ir_passes.__file__).parent]
    files = [package / "llm.py", *(file for each in folders for file in each.rglob("*.py"))]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    read = {n.attr for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    paths = [node.path for node in walk(ROOT) if isinstance(node, Leaf | Table)]
    refused = {p.path for p in find_misplaced(Given(path, None, DEFAULT) for path in paths)}
    # Passes read their switches by name; one that no pass reads is warned about.
    read |= {
        name for name, info in PassConfig.model_fields.items() if info.annotation == bool | None
    }
    unread = [p for p in paths if p not in refused and not find_row(p) and p[-1] not in read]
    assert unread == []
