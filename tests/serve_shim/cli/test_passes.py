"""Names of passes are looked up before a model is loaded, each error with its source."""

from pathlib import Path

import pytest

from ir_core import PluginError
from ir_passes.default_pipeline import PASSES
from serve_shim.cli.passes import check_passes
from serve_shim.errors import SettingsError
from serve_shim.settings import resolve

NAMES = [step.name for step in PASSES]


def refusal(*argv: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as error:
        check_passes(resolve(argv, environ))
    return str(error.value)


def test_known_passes_are_accepted():
    check_passes(resolve([]))
    check_passes(resolve([f"--disable-pass={name}" for name in NAMES]))
    check_passes(resolve([f"-cc.pass_config.order={','.join(reversed(NAMES))}"]))
    check_passes(resolve([f"-cc.pass_config.enable={NAMES[0]}", "--pass-limit=1"]))


@pytest.mark.parametrize(
    ("argv", "environ", "source"),
    [
        (["--disable-pass", "fuse_add_rms_nrm"], {}, "--disable-pass"),
        (["--disable-pass=eliminate_noops,fuse_add_rms_nrm"], {}, "--disable-pass"),
        (["-cc.pass_config.enable=fuse_add_rms_nrm"], {}, "-cc.pass_config.enable"),
        (["-cc", '{"pass_config": {"order": ["fuse_add_rms_nrm"]}}'], {}, "-cc"),
        ([], {"SERVE_SHIM_DISABLE_PASS": "fuse_add_rms_nrm"}, "SERVE_SHIM_DISABLE_PASS"),
    ],
)
def test_an_unknown_pass_is_led_back_to_its_source(
    argv: list[str], environ: dict[str, str], source: str
):
    message = refusal(*argv, **environ)
    assert message.startswith(f"`{source}`: No pass `fuse_add_rms_nrm`; did you mean ")
    assert "`fuse_add_rms_norm`?" in message


def test_the_line_of_a_file_is_the_source(tmp_path: Path):
    file = tmp_path / "serve.yaml"
    file.write_text("port: 81\ndisable_pass: [nonsense]\n", encoding="utf-8")
    assert refusal("--config", str(file)).startswith(f"`{file}:2`: No pass `nonsense`; Valid: ")


def test_every_wrong_field_is_named_at_once():
    message = refusal("--disable-pass=a", "-cc.pass_config.order=eliminate_noops,eliminate_noops")
    assert message.startswith("2 settings are wrong:")
    assert "`--disable-pass`: No pass `a`" in message
    assert "names a pass twice" in message


def test_a_broken_plug_in_is_a_wrong_setting_where_passes_are_named(
    monkeypatch: pytest.MonkeyPatch,
):
    def fail() -> None:
        raise PluginError("Plug-in `p` of `shaky` failed")

    monkeypatch.setattr("ir_passes.plugins.load_additions", fail)
    check_passes(resolve([]))
    assert refusal("--disable-pass=a") == "Plug-in `p` of `shaky` failed"
