"""Plug-ins of distributions that exist for a test only: files on `sys.path` with real metadata."""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ir_core import Platform, PluginError, Registry, UnknownOpError
from ir_core.plugins import PluginLoader

Install = Callable[..., None]

PREAMBLE = """
import torch
from torch import Tensor
from ir_core import Platform
import toy_registry
"""
OP = """
def declare():
    @toy_registry.REGISTRY.register_op
    def my_op(x: Tensor) -> Tensor:
        "Add one."
        return x + 1
"""
IMPLEMENTATION = """
def register():
    @toy_registry.REGISTRY["my_op"].register_impl("toy")
    def my_op(x: Tensor) -> Tensor:
        return x + 100
"""
PLATFORM = """
class Toy(Platform):
    name = "NAME"

    def get_default_ir_op_priority(self):
        return {"my_op": ["toy", "native"], "no_such_op": ["toy"]}

def recognise():
    return Toy()

def absent():
    return None

def confused():
    return "toy"
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on `sys.path`; what is imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "toy_registry.py").write_text("REGISTRY = None\n")
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def install(site: Path) -> Install:
    """Lay out a distribution: one module, and its entry points as {group: {name: value}}."""

    def lay_out(name: str, source: str, **entry_points: dict[str, str]) -> None:
        module = name.replace("-", "_")
        (site / f"{module}.py").write_text(PREAMBLE + source)
        metadata = site / f"{module}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        sections = [
            f"[ir_core.{group}]\n" + "".join(f"{key} = {value}\n" for key, value in names.items())
            for group, names in entry_points.items()
        ]
        (metadata / "entry_points.txt").write_text("\n".join(sections))

    return lay_out


@pytest.fixture
def make(site: Path) -> Callable[..., Registry]:
    """A registry that loads the plug-ins under test (and none of the installed ones)."""

    def registry(allow: str = "toy-ops,toy-kernels,toy-platform") -> Registry:
        import toy_registry  # type: ignore[import-not-found]

        toy_registry.REGISTRY = Registry(plugins=PluginLoader({"IR_PLUGINS": allow}))
        return toy_registry.REGISTRY

    return registry


def install_all(install: Install) -> None:
    install("toy-kernels", IMPLEMENTATION, implementations={"a_first": "toy_kernels:register"})
    install("toy-ops", OP, ops={"z_last": "toy_ops:declare"})
    install(
        "toy-platform",
        PLATFORM.replace("NAME", "toy"),
        platforms={"toy": "toy_platform:recognise", "none": "toy_platform:absent"},
    )


def test_ops_then_implementations_then_platforms_are_loaded_by_the_first_use(
    install: Install, make: Callable[..., Registry], caplog: pytest.LogCaptureFixture
) -> None:
    install_all(install)
    registry = make()
    assert list(registry) == []
    with caplog.at_level(logging.INFO, "ir_core"):
        selection = registry.select("my_op", torch.zeros(1))
    assert selection.provider == "toy"
    assert selection.implementation.origin == "toy-kernels"
    assert registry["my_op"].native.origin == "toy-ops"
    assert registry.platform().name == "toy"
    assert registry["my_op"](torch.zeros(1)).item() == 100
    messages = [each.getMessage() for each in caplog.records]
    assert [each for each in messages if each.startswith("Loaded")] == [
        "Loaded plug-in `z_last` of `toy-ops` (ir_core.ops: toy_ops:declare)",
        "Loaded plug-in `a_first` of `toy-kernels` (ir_core.implementations: toy_kernels:register)",
        "Loaded plug-in `none` of `toy-platform` (ir_core.platforms: toy_platform:absent)",
        "Loaded plug-in `toy` of `toy-platform` (ir_core.platforms: toy_platform:recognise)",
    ]
    assert any("Platform toy prefers providers for `no_such_op`" in each for each in messages)


def test_users_go_before_a_plugin_platform_and_native_comes_last(
    install: Install, make: Callable[..., Registry]
) -> None:
    install_all(install)
    registry = make()
    registry.priorities.set({"my_op": ["native"]})
    entries = registry.resolved_priorities()["my_op"].entries
    assert [(each.provider, each.source) for each in entries] == [
        ("native", "user"),
        ("toy", "platform toy"),
    ]


def test_loading_twice_registers_once(install: Install, make: Callable[..., Registry]) -> None:
    install_all(install)
    registry = make()
    registry.load_plugins()
    registry.load_plugins()
    assert list(registry) == ["my_op"]


@pytest.mark.parametrize(
    ("source", "value", "words"),
    [
        ("raise OSError('libtoy.so is missing')\n", "toy_ops:declare", "OSError: libtoy.so"),
        ("", "toy_ops:declare", "AttributeError"),
        ("", "toy_absent:declare", "ModuleNotFoundError"),
        ("declare = 3\n", "toy_ops:declare", "TypeError: it names 3, not a function"),
        ("def declare():\n    raise ValueError('no')\n", "toy_ops:declare", "ValueError: no"),
        ("", "toy_ops", "not a function"),
    ],
)
def test_a_broken_plugin_is_an_error_that_names_it_each_time(
    install: Install, make: Callable[..., Registry], source: str, value: str, words: str
) -> None:
    install("toy-ops", source, ops={"mine": value})
    registry = make("toy-ops")
    for use in (registry.load_plugins, registry.platform, lambda: registry["my_op"]):
        with pytest.raises(PluginError, match=f"`mine` of `toy-ops` .*{words}") as caught:
            use()
        assert "IR_PLUGINS" in str(caught.value)


def test_a_broken_plugin_can_be_left_out(install: Install, make: Callable[..., Registry]) -> None:
    install_all(install)
    install("toy-broken", "raise OSError('no')\n", ops={"broken": "toy_broken:declare"})
    with pytest.raises(PluginError):
        make("toy-ops,toy-broken").load_plugins()
    registry = make("toy-ops")
    assert registry["my_op"].name == "my_op"
    with pytest.raises(UnknownOpError):
        make("none")["my_op"]


def test_entry_names_and_other_spellings_of_a_distribution_are_allowed(
    install: Install, make: Callable[..., Registry]
) -> None:
    install_all(install)
    assert "toy" in make("Toy_Ops, a-first")["my_op"].implementations
    assert "toy" not in make("z_last")["my_op"].implementations


def test_an_unknown_name_in_the_allow_list_is_an_error(
    install: Install, make: Callable[..., Registry]
) -> None:
    install_all(install)
    with pytest.raises(PluginError, match="IR_PLUGINS names `toy-opps`; did you mean `toy-ops`"):
        make("toy-opps").load_plugins()


def test_one_name_from_two_distributions_is_an_error_that_names_both(
    install: Install, make: Callable[..., Registry]
) -> None:
    install("toy-ops", OP, ops={"mine": "toy_ops:declare"})
    install("toy-kernels", OP, ops={"mine": "toy_kernels:declare"})
    words = r"`mine` in `ir_core\.ops` .*`toy-kernels` and by `toy-ops`"
    with pytest.raises(PluginError, match=words):
        make("toy-ops,toy-kernels").load_plugins()
    assert list(make("toy-ops")) == []


def test_one_provider_from_two_distributions_is_an_error_with_both_places(
    install: Install, make: Callable[..., Registry], site: Path
) -> None:
    install("toy-ops", OP, ops={"op": "toy_ops:declare"})
    install("toy-a", IMPLEMENTATION, implementations={"a": "toy_a:register"})
    install("toy-b", "\n" + IMPLEMENTATION, implementations={"b": "toy_b:register"})
    with pytest.raises(PluginError, match=r"`b` of `toy-b`.*DuplicateRegistration") as caught:
        make("toy-ops,toy-a,toy-b").load_plugins()
    for name in ("toy_a", "toy_b"):
        assert f"{site / name}.py:" in str(caught.value)


def test_two_platforms_that_claim_the_machine_are_an_error(
    install: Install, make: Callable[..., Registry]
) -> None:
    for name in ("toy-a", "toy-b"):
        module = name.replace("-", "_")
        install(name, PLATFORM, platforms={f"p_{module}": f"{module}:recognise"})
    words = r"`p_toy_a` of `toy-a`.*`p_toy_b` of `toy-b`.*both claim"
    with pytest.raises(PluginError, match=words):
        make("toy-a,toy-b").platform()


def test_a_platform_plugin_returns_a_platform(
    install: Install, make: Callable[..., Registry]
) -> None:
    install("toy-platform", PLATFORM, platforms={"toy": "toy_platform:confused"})
    with pytest.raises(PluginError, match="returned 'toy'; a platform plug-in returns an"):
        make("toy-platform").platform()


def test_without_a_plugin_platform_the_machine_decides(
    install: Install, make: Callable[..., Registry]
) -> None:
    install("toy-platform", PLATFORM, platforms={"toy": "toy_platform:absent"})
    platform = make("toy-platform").platform()
    assert isinstance(platform, Platform)
    assert platform.name in ("cpu", "cuda", "rocm", "xpu")


def test_a_plugin_may_use_the_registry_while_it_loads(
    install: Install, make: Callable[..., Registry]
) -> None:
    source = OP + "\n\ndef both():\n    declare()\n    toy_registry.REGISTRY.load_plugins()\n"
    source += "    toy_registry.REGISTRY.select('my_op', torch.zeros(1))\n"
    install("toy-ops", source, ops={"mine": "toy_ops:both"})
    assert make("toy-ops")["my_op"](torch.zeros(1)).item() == 1


def test_an_interrupted_load_is_begun_anew(install: Install, make: Callable[..., Registry]) -> None:
    source = "import sys\nATTEMPTS = []\ndef interrupted():\n    ATTEMPTS.append(1)\n"
    source += "    if len(ATTEMPTS) < 3:\n        sys.exit(3)\n"
    install(
        "toy-platform",
        PLATFORM.replace("NAME", "toy") + source,
        platforms={"a": "toy_platform:recognise", "b": "toy_platform:interrupted"},
    )
    install("toy-ops", OP, ops={"mine": "toy_ops:declare"})
    registry = make("toy-ops,toy-platform")
    for _ in range(2):
        with pytest.raises(SystemExit):
            registry.load_plugins()
    assert registry.platform().name == "toy"
    assert list(registry) == ["my_op"]


def test_a_distribution_without_a_name_is_an_error_each_time(
    install: Install, make: Callable[..., Registry], site: Path
) -> None:
    install("toy-ops", OP, ops={"mine": "toy_ops:declare"})
    metadata = site / "toy_ops-1.0.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nVersion: 1.0\n")
    registry = make("toy-ops")
    for _ in range(2):
        with pytest.raises(PluginError, match=r"Entry points cannot be read: .*damaged"):
            registry.load_plugins()


def test_whether_an_op_exists_is_answered_with_plugins_loaded(
    install: Install, make: Callable[..., Registry]
) -> None:
    install_all(install)
    assert "my_op" in make()
    assert make().get("no_such_op") is None
