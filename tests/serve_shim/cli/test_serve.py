"""The order of a start, with the server replaced at its one seam."""

import logging
import sys
from types import ModuleType

import pytest

from serve_shim.cli.serve import is_open_to_others, serve
from serve_shim.errors import SettingsError
from serve_shim.settings import Settings, resolve


class FakeServer(ModuleType):
    """Stands for `serve_shim.server`; notes what it is asked to run."""

    def __init__(self) -> None:
        super().__init__("serve_shim.server")
        self.ran: list[Settings] = []

    def run(self, settings: Settings) -> int:
        self.ran.append(settings)
        return 5


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer()
    monkeypatch.setitem(sys.modules, "serve_shim.server", fake)
    return fake


def test_the_server_gets_the_settings_and_gives_the_exit_code(server: FakeServer):
    assert serve(["m", "--port=81"], {}) == 5
    [settings] = server.ran
    assert (settings.model, settings.port) == ("m", 81)


def test_the_environment_is_prepared_before_the_server_runs(server: FakeServer):
    environ = {"IR_BATCH_INVARIANT": "1"}
    serve(["--threads=2"], environ)
    assert environ["OMP_NUM_THREADS"] == "2"
    assert environ["IR_BATCH_INVARIANT"] == "1"
    assert server.ran[0].batch_invariant


def test_dry_run_checks_and_does_not_serve(server: FakeServer, capsys: pytest.CaptureFixture[str]):
    assert serve(["--dry-run", "--ir-op-priority.rms_norm=native"], {}) == 0
    assert capsys.readouterr().out == "The settings are valid.\n"
    assert server.ran == []


@pytest.mark.parametrize("argv", [["--dry-run"], []])
def test_a_wrong_priority_never_reaches_the_server(server: FakeServer, argv: list[str]):
    with pytest.raises(SettingsError, match=r"`--ir-op-priority\.rms_nrm`: No op `rms_nrm`"):
        serve(["--ir-op-priority.rms_nrm=native", *argv], {})
    assert server.ran == []


@pytest.mark.parametrize("argv", [["--dry-run"], ["--enforce-eager"], []])
def test_an_unknown_pass_never_reaches_the_server(server: FakeServer, argv: list[str]):
    with pytest.raises(SettingsError, match="`--disable-pass`: No pass `fuse_norms`"):
        serve(["--disable-pass=fuse_norms", *argv], {})
    assert server.ran == []


def test_print_config_prints_and_does_not_serve(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
):
    assert serve(["--print-config", "--port=81"], {}) == 0
    assert "port: 81 " in capsys.readouterr().out
    assert serve(["--print-config=json"], {}) == 0
    assert capsys.readouterr().out.startswith("{")
    assert server.ran == []


@pytest.mark.usefixtures("server")
def test_what_is_not_default_is_logged_without_secrets(capsys: pytest.CaptureFixture[str]):
    serve(["--port=81", "--api-key=hunter2"], {})
    log = capsys.readouterr().err
    assert "non-default args: {'port': 81, 'api_key': ['***']}" in log
    assert "hunter2" not in log


@pytest.mark.usefixtures("server")
def test_the_level_of_the_log_is_a_setting(capsys: pytest.CaptureFixture[str]):
    serve(["--log-level=ERROR"], {})
    assert capsys.readouterr().err == ""
    serve([], {"VLLM_LOGGING_LEVEL": "DEBUG"})
    assert logging.getLogger("ir_core").getEffectiveLevel() == logging.DEBUG


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("argv", "is_warned"),
    [(["--host=0.0.0.0"], True), (["--host=0.0.0.0", "--api-key=k"], False), ([], False)],
)
def test_an_open_server_is_warned_about(
    argv: list[str], is_warned: bool, capsys: pytest.CaptureFixture[str]
):
    serve(argv, {})
    assert ("without an API key" in capsys.readouterr().err) is is_warned


@pytest.mark.parametrize(
    ("argv", "is_open"),
    [
        (["--host=127.0.0.1"], False),
        (["--host=127.9.9.9"], False),
        (["--host=::1"], False),
        (["--host=localhost"], False),
        (["--uds=/tmp/s"], False),
        (["--host=0.0.0.0"], True),
        (["--host=::"], True),
        (["--host=10.1.2.3"], True),
        (["--host=my.host"], True),
    ],
)
def test_loopback_is_not_open_to_others(argv: list[str], is_open: bool):
    assert is_open_to_others(resolve(argv).settings) is is_open


def test_a_key_file_without_keys_stops_the_start(server: FakeServer):
    with pytest.raises(SettingsError, match="api_key_file"):
        serve(["--api-key-file=/absent"], {})
    assert server.ran == []
