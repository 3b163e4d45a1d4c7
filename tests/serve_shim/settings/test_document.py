from pathlib import Path

import pytest

from serve_shim.errors import SettingsError
from serve_shim.settings import Settings, resolve
from serve_shim.settings.document import MAX_BYTES, from_file
from serve_shim.settings.schema import settings_schema
from serve_shim.settings.source import Given
from serve_shim.settings.wrong_setting import WrongSettingError

ROOT = settings_schema(Settings)


def read(path: Path, text: str | bytes) -> list[tuple[str, object, str]]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    result: list[tuple[str, object, str]] = []
    for item in from_file(ROOT, str(path)):
        if isinstance(item, WrongSettingError):
            raise item
        result.append((".".join(item.path), item.value, item.source.name.removeprefix(str(path))))
    return result


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "serve.yaml"


def test_yaml_gives_every_value_with_its_line(file: Path):
    text = """\
# a comment
port: 80
scheduler:
  max-num-seqs: 4
ir-op-priority:
  rms_norm: [aiter, vllm_c, native]
  silu-and-mul:
    - native
compilation_config: {mode: 0}
max_queue: 9
"""
    assert read(file, text) == [
        ("port", 80, ":2"),
        ("scheduler.max_num_seqs", 4, ":4"),
        ("kernel_config.ir_op_priority.rms_norm", ["aiter", "vllm_c", "native"], ":6"),
        ("kernel_config.ir_op_priority.silu_and_mul", ["native"], ":7"),
        ("compilation_config.mode", 0, ":9"),
        ("scheduler.max_queue", 9, ":10"),
    ]


def test_json_is_read_by_its_ending(tmp_path: Path):
    text = '{"port": 80, "kernel_config": {"ir_op_priority": {"rms_norm": ["a", "b"]}}}'
    assert read(tmp_path / "serve.json", text) == [
        ("port", 80, ""),
        ("kernel_config.ir_op_priority.rms_norm", ["a", "b"], ""),
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "scheduler:\n", "---\n...\n"])
def test_a_file_that_says_nothing_gives_nothing(file: Path, text: str):
    assert read(file, text) == []


def test_a_byte_order_mark_is_skipped(file: Path):
    assert read(file, b"\xef\xbb\xbfport: 80\n") == [("port", 80, ":1")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: [80", "not valid YAML at line 1"),
        ("port: 80\n  host: x\n", "line 2, column 7"),
        ("a: b: c", "mapping values are not allowed"),
        ("port: 1\nport: 2\n", "key 'port' stands a second time on line 2"),
        ("scheduler:\n  max_queue: 1\n  max_queue: 2\n", "second time on line 3"),
        ("max_num_seqs: 8\nmax-num-seqs: 16\n", "serve.yaml:2`: `scheduler.max_num_seqs` stands"),
        ("max_queue: 8\nscheduler:\n  max-queue: 8\n", "stands a second time; first at `"),
        ("cc: {mode: 0}\ncompilation_config: {mode: 0}\n", "serve.yaml:2`: `compilation_config.m"),
        ("prot: 80\n", "serve.yaml:1`: unknown setting `prot`. Did you mean `port`"),
        (
            "scheduler:\n  max_num_seq: 1\n",
            "serve.yaml:2`: unknown setting `max_num_seq` in `sched",
        ),
        ("scheduler: 5\n", "`scheduler` wants an object of settings, not 5"),
        ("- port\n", "wants names and values at the top"),
        ("port\n", "wants names and values at the top"),
        ("on: 80\n", "key True is not a name"),
        ("1: 80\n", "key 1 is not a name"),
        ("port: 80\n---\nport: 81\n", "expected a single document"),
        ("x: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("scheduler: &a {x: *a}\n", "not valid YAML"),
        (b"port: \xff\n", "is not UTF-8 at byte 6"),
        (b"port: \x00\n", "not valid YAML"),
        ("limits: " + "[" * 400, "not valid YAML"),
        ("ir_op_priority: {rms_norm: 'a,,b'}\n", "has an empty item"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_the_place(file: Path, text: str | bytes, message: str):
    with pytest.raises(WrongSettingError) as error:
        read(file, text)
    assert message in str(error.value)
    assert str(file) in str(error.value)


def test_a_file_that_is_too_large_is_not_read(file: Path):
    with pytest.raises(WrongSettingError, match="larger than 1 MiB"):
        read(file, b" " * (MAX_BYTES + 1))


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str):
    [problem] = from_file(ROOT, str(tmp_path / name))
    assert isinstance(problem, WrongSettingError)
    assert "cannot be read: " in str(problem)


def test_several_mistakes_are_all_found(file: Path):
    file.write_text("prot: 1\nport: 2\nscheduler: {max_num: 3}\n", encoding="utf-8")
    kinds = [isinstance(item, Given) for item in from_file(ROOT, str(file))]
    assert kinds == [False, True, False]


@pytest.mark.parametrize(
    "text",
    [
        "api_key: *hunter2\n",
        "api-key: !hunter2 x\n",
        "- api_key: hunter2\n",
        "api_key hunter2\n",
        "api_key: {hunter2: 1}\n",
        "api_key: [{hunter2: 1}]\n",
    ],
)
def test_no_mistake_in_a_file_shows_a_key(file: Path, text: str):
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as error:
        resolve(["--config", str(file)])
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("name", ["serve.yaml", "serve.json"])
def test_an_excerpt_never_shows_a_key(tmp_path: Path, name: str):
    with pytest.raises(WrongSettingError) as error:
        read(tmp_path / name, '{"api_key": ["hunter2" "x"]}')
    assert "hunter2" not in str(error.value)
    assert "column" in str(error.value)
