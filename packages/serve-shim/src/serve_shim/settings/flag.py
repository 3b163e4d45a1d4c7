"""What a setting looks like on the command line beyond its dotted path. It holds no values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """Marks a field that has a flag of its own at the top level.

    `group` is the heading in `--help`; `names` are further spellings with their dashes, the
    shortest last. A field of a nested section so marked is also reached without the section's
    name: `--max-num-seqs` for `scheduler.max_num_seqs`.
    """

    group: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpNames:
    """Marks an open mapping whose keys are op names: `-` in a key is read as `_`."""
