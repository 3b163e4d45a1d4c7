"""Says which configured pass does not exist and who named it. It runs no pass and loads no model.

Only where a pass is named at all does it import what the compile stack needs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ir_passes.config import PassConfig
from serve_shim.errors import SettingsError
from serve_shim.settings import Resolved
from serve_shim.settings.wrong_setting import WrongSettingError, raise_problems

_PATH = ("compilation_config", "pass_config")
_FIELDS = ("enable", "disable", "order")


def check_passes(resolved: Resolved) -> None:
    """Look up every pass that the settings name, those of plug-ins included.

    Raises SettingsError that names the source, with a suggestion, for an unknown pass and for a
    plug-in that cannot be loaded.
    """
    config = resolved.settings.compilation_config.pass_config
    named = {name: value for name in _FIELDS if (value := getattr(config, name))}
    if named:
        raise_problems([*_problems(resolved, named)])


def _problems(resolved: Resolved, named: dict[str, tuple[str, ...]]) -> Iterator[WrongSettingError]:
    # They import torch.
    from ir_core import PluginError  # noqa: PLC0415
    from ir_passes import PipelineError, build_pipeline  # noqa: PLC0415
    from ir_passes.plugins import load_additions  # noqa: PLC0415

    try:
        additions = load_additions()
        for field, value in named.items():
            path = (*_PATH, field)
            try:
                build_pipeline(PassConfig.model_validate({field: value}), additions)
            except PipelineError as error:
                yield WrongSettingError(str(error), resolved.source_of(path), path)
    except PluginError as error:
        raise SettingsError(str(error)) from error
