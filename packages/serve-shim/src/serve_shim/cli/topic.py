"""Which settings a page of help shows, and under which heading. It formats nothing."""

from __future__ import annotations

from collections.abc import Iterator

from serve_shim.settings.schema import Node, Section, settings_schema, walk
from serve_shim.settings.tree import Settings
from serve_shim.settings.wrong_setting import WrongSettingError, suggest

LIMITS = "Request limits"
"""Heading of the limits, which have no flags of their own."""


def select_nodes(topic: str | None) -> Iterator[Node]:
    """The nodes of a page: the usual ones for None, every key for `all`.

    Else a heading, the name of a setting, or a section with all in it. Raises WrongSettingError
    with a suggestion for another topic.
    """
    root = settings_schema(Settings)
    nodes = [node for node in walk(root) if node.path]
    if topic is None:
        yield from (node for node in nodes if node.flag)
        return
    nodes = [node for node in nodes if node.flag or not isinstance(node, Section)]
    name = topic.lstrip("-").replace("-", "_").replace(" ", "_").lower()
    found = nodes if name == "all" else [n for n in nodes if name in _topics(root, n)]
    if not found:
        known = {"all"}.union(*(_topics(root, node) for node in nodes))
        raise WrongSettingError(f"`--help={topic}`: no such topic.{suggest(name, known)}")
    yield from found


def heading(node: Node) -> str:
    """The heading that a node stands under."""
    if node.flag:
        return node.flag.group
    return LIMITS if node.path[0] == "limits" else "Compilation"  # the two that are long


def headings() -> list[str]:
    """All headings in the order of the tree."""
    nodes = walk(settings_schema(Settings))
    return [*dict.fromkeys(heading(node) for node in nodes if node.flag), LIMITS]


def _topics(root: Section, node: Node) -> set[str]:
    """Words that select a node: its name, aliases and heading, and each section it is in."""
    aliases = {n.lower() for n, path in root.aliases.items() if node.path[: len(path)] == path}
    title = heading(node).lower().replace(" ", "_")
    return {*node.path, ".".join(node.path), title} | aliases
