"""What a setting looks like on the command line beyond its dotted path. It holds no values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """Marks a field that has a flag of its own at the top level.

    `group` is the heading in `--help`; `names` are further spellings with their dashes, the
    shortest last. A field of a nested section so marked is also reached without the section's
    name: `--max-num-seqs` for `scheduler.max_num_seqs`, or under `name` where its own says too
    little. A list with `is_repeatable` grows when the flag is given again under that name.
    """

    group: str
    names: tuple[str, ...] = ()
    name: str = ""
    is_repeatable: bool = False


@dataclass(frozen=True, slots=True, eq=False)  # annotations are hashed
class InnerFlags:
    """Marks a section whose model is declared elsewhere: flags by dotted path below the section."""

    flags: Mapping[str, Flag]


@dataclass(frozen=True, slots=True)
class OpNames:
    """Marks an open mapping whose keys are op names: `-` in a key is read as `_`."""
