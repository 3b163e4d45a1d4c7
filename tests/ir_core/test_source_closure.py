import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ir_core.source_closure import SourceClosure, UnreadableSourceError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = tmp_path / "toy_closure"
    root.mkdir()
    (root / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield root
    for name in [each for each in sys.modules if each.startswith("toy_closure")]:
        del sys.modules[name]


def factors(root: Path, source: str, **modules: str) -> dict[str, str]:
    for name, text in {"start": source, **modules}.items():
        (root / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    start = importlib.import_module("toy_closure.start")
    return SourceClosure().factors("toy_closure.start", start.__file__)


@pytest.mark.parametrize(
    "source",
    [
        "import toy_closure.other\n",
        "from toy_closure import other\n",
        "from . import other\n",
        "from .other import VALUE\n",
        "def later():\n    from .other import VALUE\n    return VALUE\n",
        "if False:\n    import toy_closure.other as o\n",
        "try:\n    from . import other\nexcept ImportError:\n    other = None\n",
    ],
)
def test_every_form_of_import_is_followed(package: Path, source: str) -> None:
    found = factors(package, source, other="VALUE = 1\n")
    assert {"module toy_closure.start", "module toy_closure.other"} <= set(found)


def test_cycles_end(package: Path) -> None:
    found = factors(package, "from . import other\n", other="from . import start\n")
    assert len([each for each in found if each.startswith("module")]) == 3


def test_other_distributions_count_by_version_and_the_library_by_nothing(package: Path) -> None:
    source = "import os\nimport torch\ntry:\n    import no_such_package\nexcept ImportError: pass\n"
    found = factors(package, source)
    assert set(found) == {"module toy_closure.start", "version torch", "version no_such_package"}
    assert found["version no_such_package"] == "absent"


def test_a_file_is_read_once(package: Path) -> None:
    (package / "start.py").write_text("ONE = 1\n")
    start = importlib.import_module("toy_closure.start")
    closure = SourceClosure()
    before = closure.factors("toy_closure.start", start.__file__)
    (package / "start.py").write_text("TWO = 2\n")
    assert closure.factors("toy_closure.start", start.__file__) == before


def test_code_from_elsewhere_and_modules_without_files_are_refused(package: Path) -> None:
    importlib.import_module("toy_closure")
    closure = SourceClosure()
    with pytest.raises(UnreadableSourceError, match="comes from `<string>`"):
        closure.factors("toy_closure", "<string>")
    with pytest.raises(UnreadableSourceError, match=r"`toy_closure\.absent` has no file"):
        closure.factors("toy_closure.absent", None)


def test_compiled_libraries_count_with_their_version_too(package: Path) -> None:
    for name in ("fast.so", "libfast.so.1", "libfast.so.1.2", "notes.txt", "so"):
        (package / name).write_bytes(name.encode())
    (package / "libfast.dylib.dSYM").mkdir()
    found = factors(package, "")
    libraries = {each for each in found if each.startswith("library")}
    names = ("fast.so", "libfast.so.1", "libfast.so.1.2")
    assert libraries == {f"library toy_closure/{name}" for name in names}
