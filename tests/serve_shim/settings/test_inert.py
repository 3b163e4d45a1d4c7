"""Nothing that is declared may do nothing in silence."""

import ast
import shlex
from pathlib import Path

import pytest

import ir_passes
import serve_shim
from ir_passes.config import PassConfig
from ir_passes.default_pipeline import unserved_options
from ir_passes.pipeline import Pipeline
from serve_shim.errors import SettingsError
from serve_shim.settings import Settings, inert, resolve
from serve_shim.settings.inert import INERT, Inert, find_refusals, find_row
from serve_shim.settings.schema import Leaf, Table, settings_schema, walk

ROOT = settings_schema(Settings)
SETTINGS = {n.path: n for n in walk(ROOT) if isinstance(n, Leaf | Table)}


@pytest.mark.parametrize(
    "line",
    [
        "--allow-pickle-weights",
        "-cc.mode=1",
        "-cc.mode=dynamo_trace_once",
        "--compilation-config '{\"mode\": 2}'",
    ],
)
def test_what_would_do_nothing_is_refused(line: str):
    argv = shlex.split(line)
    with pytest.raises(SettingsError, match="remove it") as error:
        resolve(argv)
    assert str(error.value).startswith(f"`{argv[0].split('=')[0]}`: ")


@pytest.mark.parametrize(
    "line",
    [
        "-tp 1",
        "--no-allow-pickle-weights",
    ],
)
def test_what_is_already_so_is_accepted(line: str):
    resolve(shlex.split(line))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-O0",
        "-O1",
        "-O3",
        "--enforce-eager",
        "--no-enforce-eager",
        "-cc.mode=0",
        "-cc.mode=NONE",
        "-cc.mode=3",
        "-cc.mode=null",
        "-cc.backend=eager",
        "-cc.splitting_ops=a",
        "-cc.compile_sizes=1,2,4,8",
        "--compilation_config '{\"compile_sizes\": [1, 2, 4, 8]}'",
        "-cc.compile_ranges_endpoints=8",
        "-cc.dynamic_shapes_config.type=backed",
        "-cc.dynamic_shapes_config.evaluate_guards",
        "-cc.dynamic_shapes_config.guards=rebuild",
        "-tp 2",
        "-tp 2 --ray-address=h:1 --allow-insecure-ray --heartbeat-timeout=3 --check-rank-tokens",
        "-cc.pass_config.enable_sp",
        "-cc.pass_config.sp_min_token_num=8",
        "--autotune=on",
        "-cc.autotune=cached",
        "--disable-pass=a",
        "--pass-limit=0",
        "--verify-each-pass",
        "-cc.inductor_compile_config.a=1",
        "-cc.debug_dump_path=x",
        "--cache-mode=rw --cache-dir=x --cache-key-file=y --cache-trust=directory",
        "--cache-max-size=1GiB",
        "-cc.compile_cache_save_format=unpacked",
    ],
)
def test_what_the_compile_stack_acts_on_is_accepted(line: str):
    resolve(shlex.split(line))


def test_a_refused_variable_is_named():
    with pytest.raises(SettingsError, match=r"^`SERVE_SHIM_ALLOW_PICKLE_WEIGHTS`: "):
        resolve([], {"SERVE_SHIM_ALLOW_PICKLE_WEIGHTS": "true"})


@pytest.mark.parametrize(
    "flag",
    ["--ray-address=h:1", "--allow-insecure-ray", "--heartbeat-timeout=3", "--check-rank-tokens"],
)
def test_what_only_several_ranks_act_on_is_refused_for_one(flag: str):
    with pytest.raises(SettingsError, match=r"acts? on several ranks only.*`--tp`"):
        resolve([flag])


def test_every_row_names_a_setting_or_a_section():
    names = {".".join(node.path) for node in walk(ROOT)}
    assert [row.path for row in INERT if row.path not in names] == []


def test_no_setting_has_two_rows():
    for path in SETTINGS:
        covering = [r for r in INERT if (".".join(path) + ".").startswith(r.path + ".")]
        assert len(covering) <= 1, path


def test_defaults_are_never_refused():
    assert list(find_refusals(Settings())) == []


def test_a_row_covers_its_setting_and_all_below_it(monkeypatch: pytest.MonkeyPatch):
    row = Inert("compilation_config.pass_config")
    monkeypatch.setattr(inert, "INERT", (row,))
    assert find_row(("compilation_config", "pass_config", "enable_sp")) is row
    assert find_row(("compilation_config", "pass_config")) is row
    assert find_row(("compilation_config", "pass_config_x")) is None
    assert find_row(("compilation_config",)) is None


def test_every_setting_is_read_somewhere_or_refused():
    """A setting without a row must be read as an attribute outside the settings package."""
    read = _attributes_read(Path(serve_shim.__file__).parent)
    read |= _attributes_read(Path(ir_passes.__file__).parent)
    unread = [p for p in SETTINGS if not find_row(p) and p[-1] not in read | _pass_options()]
    assert unread == []


def _pass_options() -> set[str]:
    """Switches that passes read by their own name; one that no pass reads is warned about."""
    fields = PassConfig.model_fields.items()
    names = {name for name, info in fields if info.annotation == bool | None}
    asked = PassConfig.model_validate(dict.fromkeys(names, True))
    assert set(unserved_options(asked, Pipeline())) == names
    return names


def _attributes_read(package: Path) -> set[str]:
    files = [f for f in package.rglob("*.py") if f.relative_to(package).parts[0] != "settings"]
    files += package.glob("settings/api_keys.py")
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    return {n.attr for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
