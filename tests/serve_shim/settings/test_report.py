import json
from pathlib import Path

import pytest
import yaml

from serve_shim.settings import non_default, resolve
from serve_shim.settings.report import to_json, to_text

ARGV = [
    "a/model",
    "--port=80",
    "--api-key=hunter2",
    "--ir-op-priority.rms-norm=a,b",
    "--limits.max-n=3",
    "-cc.mode=none",
    "--kv-cache-memory-bytes=1GiB",
]
ENVIRON = {"SERVE_SHIM_PORT": "81", "SERVE_SHIM_SEED": "7"}


def test_text_shows_every_value_with_its_source():
    lines = to_text(resolve(ARGV, ENVIRON)).splitlines()
    squeezed = [" ".join(line.split()) for line in lines]
    assert 'model: "a/model" # `MODEL`' in squeezed
    assert "port: 80 # `--port`, instead of `SERVE_SHIM_PORT`" in squeezed
    assert "seed: 7 # `SERVE_SHIM_SEED`" in squeezed
    assert 'rms_norm: ["a", "b"] # `--ir-op-priority.rms-norm`' in squeezed
    assert '# host: "127.0.0.1" # default' in squeezed
    assert '# backend: "inductor" # default' in squeezed
    (pickle,) = [line for line in squeezed if line.startswith("# allow_pickle_weights: false # ")]
    assert "refused: reading a pickle" in pickle


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        ([a for a in ARGV if "api-key" not in a], ENVIRON),
        (["--uds=/tmp/socket"], {}),
        (["--host=::1", "-cc.mode=null", "--enforce-eager", "-O0"], {}),
        (["--disable-pass=a", "--disable-pass=b", "--pass-limit=3", "-O1"], {}),
        ([], {}),
    ],
)
def test_text_is_a_configuration_file_that_gives_the_same_settings(
    argv: list[str], environ: dict[str, str], tmp_path: Path
):
    resolved = resolve(argv, environ)
    file = tmp_path / "c.yaml"
    file.write_text(to_text(resolved), encoding="utf-8")
    again = resolve(["--config", str(file)])
    assert again.settings == resolved.settings
    assert set(again.provenance) == set(resolved.provenance)


def test_a_secret_is_never_printed_nor_read_back(tmp_path: Path):
    resolved = resolve(ARGV)
    text = to_text(resolved)
    for printed in (text, to_json(resolved), str(non_default(resolved)), repr(resolved)):
        assert "hunter2" not in printed
    assert "***" in text
    assert "api_key" not in yaml.safe_load(text)


def test_json_holds_value_and_source_of_every_setting():
    entries = json.loads(to_json(resolve(ARGV, ENVIRON)))
    assert entries["port"] == {
        "value": 80,
        "source": "argument",
        "name": "--port",
        "overrides": ["SERVE_SHIM_PORT"],
    }
    assert entries["kernel_config.ir_op_priority.rms_norm"]["value"] == ["a", "b"]
    assert entries["api_key"]["value"] == ["***"]
    assert entries["host"]["source"] == "default"


def test_non_default_leaves_out_what_was_given_at_its_default():
    assert non_default(resolve(["--port=8000", "--seed=7"])) == {"seed": 7}
    assert non_default(resolve([])) == {}


def test_non_default_names_each_op():
    resolved = resolve(["--ir-op-priority.rms_norm=a", "--api-key=x"])
    assert non_default(resolved) == {
        "api_key": ["***"],
        "kernel_config.ir_op_priority.rms_norm": ["a"],
    }
