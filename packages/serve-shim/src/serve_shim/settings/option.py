"""How settings are spelt as options. It reads no command line."""

from __future__ import annotations

from serve_shim.settings.schema import Section, walk
from serve_shim.settings.wrong_setting import nearest

ACTIONS = ("config", "print_config", "dry_run")
"""Options of the command itself, which are no settings."""


def option_names(root: Section) -> list[str]:
    """Every option in its usual spelling, longest names first where a setting has several."""
    top = [*root.children, *root.aliases, *ACTIONS]
    flags = [name for node in walk(root) if node.flag for name in node.flag.names]
    dotted = [f"--{'.'.join(n.path)}" for n in walk(root) if len(n.path) > 1]
    plain = [f"--{name}" for name in top if f"-{name}" not in flags]
    return [name.replace("_", "-") for name in (*plain, *flags, *dotted)]


def short_options(root: Section) -> set[str]:
    """The spellings with one dash."""
    flags = {name for node in walk(root) if node.flag for name in node.flag.names}
    return {name for name in flags if not name.startswith("--")}


def is_known(root: Section, name: str) -> bool:
    """Whether the first part of a dotted name is a setting, a section or an alias."""
    key = name.replace("-", "_")
    return key in root.children or key in root.aliases


def suggest_option(root: Section, option: str) -> str:
    """` Did you mean …?` for the nearest options in their usual spelling, or nothing."""
    return nearest(option.replace("_", "-"), option_names(root))
