"""Commands, help and completion, in process."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from serve_shim.cli import run
from serve_shim.cli.app import build_app
from serve_shim.cli.collect_env import gather_facts
from serve_shim.errors import SettingsError
from serve_shim.settings import Settings
from serve_shim.settings.schema import settings_schema, usual_path, walk

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def help_of(capsys: Captured, *argv: str) -> str:
    assert run(list(argv), {}) == 0
    return capsys.readouterr().out


def test_help_names_every_flag_and_its_variable(capsys: Captured):
    text = " ".join(help_of(capsys, "--help").replace("│", " ").split())
    for node in walk(settings_schema(Settings)):
        if node.flag:
            (name,) = usual_path(node)
            assert f"--{name.replace('_', '-')}" in text
            assert f"SERVE_SHIM_{name.upper()}]" in text
            assert all(spelling in text for spelling in node.flag.names)


def test_help_fits_two_screens(capsys: Captured):
    assert len(help_of(capsys, "--help").splitlines()) <= 128


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["serve", "--help"], ["--port=1", "--help"]])
def test_help_is_found_wherever_it_stands(capsys: Captured, argv: list[str]):
    assert "--max-num-seqs" in help_of(capsys, *argv)


def test_help_shows_that_a_format_is_joined_to_its_option(capsys: Captured):
    assert "--print-config[=text|json]" in help_of(capsys, "--help")


def test_help_marks_what_is_not_available_yet(capsys: Captured):
    assert "not available yet" in help_of(capsys, "--help=compilation-config")
    assert "not available yet" not in help_of(capsys, "--help=port")


def test_help_of_a_topic_shows_its_keys(capsys: Captured):
    text = help_of(capsys, "--help=limits")
    assert "--limits.max-n INT" in text
    assert "--port" not in text
    assert "--compilation-config.mode CHOICE" in help_of(capsys, "--help=cc")


def test_help_of_an_unknown_topic_suggests_one():
    with pytest.raises(SettingsError, match="Did you mean `limits`"):
        run(["--help=limts"], {})


def test_version_is_the_distribution_s(capsys: Captured):
    assert help_of(capsys, "--version").strip() == version("serve-shim")


@pytest.mark.parametrize("prefix", [[], ["serve"]])
def test_serve_is_the_default_command(capsys: Captured, prefix: list[str]):
    text = help_of(capsys, *prefix, "a/model", "--print-config", "-cc", '{"mode": 0}', "-O0")
    assert 'model: "a/model" ' in text


def test_tokens_reach_the_settings_as_they_are(capsys: Captured):
    text = help_of(capsys, "--print-config", "--chat-template=--x", "--", "-m")
    assert 'model: "-m" ' in text
    assert 'chat_template: "--x" ' in text


@pytest.mark.parametrize("name", ["colect-env", "sevre", "collect_env"])
def test_a_misspelt_command_is_no_model(name: str):
    with pytest.raises(SettingsError, match="did you mean the command"):
        run([name], {})


def test_a_directory_may_be_called_like_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
):
    (tmp_path / "server").mkdir()
    monkeypatch.chdir(tmp_path)
    assert 'model: "server" ' in help_of(capsys, "server", "--print-config")


def test_collect_env_prints_what_a_report_needs(capsys: Captured):
    text = help_of(capsys, "collect-env")
    for part in ("python: ", "torch: ", "cuda: ", "rms_norm: "):
        assert part in text


def test_collect_env_as_json(capsys: Captured):
    facts = json.loads(help_of(capsys, "collect-env", "--as-json"))
    assert facts["packages"]["serve-shim"] == version("serve-shim")
    assert "native" in facts["ops"]["rms_norm"]


def test_collect_env_hides_secrets():
    environ = {"SERVE_SHIM_API_KEY": "hunter2", "SERVE_SHIM_PORT": "1", "HF_TOKEN": "t"}
    facts = gather_facts(environ)["environment"]
    assert facts == {"SERVE_SHIM_API_KEY": "***", "SERVE_SHIM_PORT": "1"}


def test_an_unknown_option_of_a_command_is_a_usage_error():
    with pytest.raises(SettingsError, match="--foo"):
        run(["collect-env", "--foo"], {})


def test_completion_knows_options_and_choices():
    script = build_app().generate_completion(shell="bash")  # noqa: S604
    for word in ("--max-num-seqs", "--log-level", "collect-env", "bfloat16"):
        assert word in script
