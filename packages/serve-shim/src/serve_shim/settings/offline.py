"""The settings that mean nothing to a model without a server, and why. It validates nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from serve_shim.settings.schema import at, settings_schema
from serve_shim.settings.source import Given, Path
from serve_shim.settings.tree import Settings
from serve_shim.settings.wrong_setting import WrongSettingError

_SERVER_GROUPS = ("Server", "Logging")
_SERVER_ONLY = "only a server acts on it; remove it"
_REASONS: Mapping[Path, str] = {
    ("served_model_name",): _SERVER_ONLY,
    ("scheduler", "max_queue"): _SERVER_ONLY,
    ("batch_invariant",): "holds for the whole process, not for one model; set"
    " IR_BATCH_INVARIANT=1 before it starts, or call `ir_core.set_batch_invariant(True)`",
}


def find_misplaced(given: Iterable[Given | WrongSettingError]) -> Iterator[WrongSettingError]:
    """One problem for each given setting that would do nothing without a server."""
    for item in given:
        if isinstance(item, Given) and (reason := _reason(item.path)):
            yield WrongSettingError(reason, item.source, item.path)


def _reason(path: Path) -> str | None:
    flag = at(settings_schema(Settings), path[:1]).flag
    is_server_only = flag is not None and flag.group in _SERVER_GROUPS
    return _SERVER_ONLY if is_server_only else _REASONS.get(path)
