"""A compiled piece as data: what a backend gives to be kept and takes back. Compiles nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredCode:
    """One piece's code, which depends on no file and on no process.

    Attributes:
        source: Python that only defines: the names it uses are those that the loader provides, and
            `call` takes the piece's inputs as one list.
        libraries: the bytes of a shared library for each kernel that `source` calls, by its name
            there.
        listings: the C++ text of the kernels, for people; it is never read back.
    """

    source: str
    libraries: Mapping[str, bytes]
    listings: Mapping[str, str]
