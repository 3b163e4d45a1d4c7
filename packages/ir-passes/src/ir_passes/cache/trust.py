"""Whose entries are believed: the code that a manifest carries, and what to do without one."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ir_passes.cache.key_file import MacKey, ensure_key, read_key
from ir_passes.cache.layout import default_key_file
from ir_passes.cache.manifest import Manifest, canonical
from ir_passes.config import CacheTrust
from ir_passes.errors import UntrustedEntryError

_log = logging.getLogger(__name__)
_MAC = "mac"


@dataclass(frozen=True, slots=True)
class Trust:
    """What vouches for manifests.

    Attributes:
        kind: whether a manifest needs a code of the key, or lying in the directory is enough.
        key: the secret; None where there is none.
        problem: why there is none.
    """

    kind: CacheTrust
    key: MacKey | None
    problem: str

    @property
    def can_publish(self) -> bool:
        """Whether what is written now would be believed later."""
        return self.key is not None or self.kind is CacheTrust.DIRECTORY

    def seal(self, manifest: Manifest) -> bytes:
        """The bytes of the manifest's file."""
        document = manifest.to_document()
        if self.key is not None:
            document[_MAC] = self.key.mac_of(canonical(document))
        return canonical(document)

    def refusal(self, document: dict[str, Any]) -> str:
        """Take the code out of a document; why the rest is not believed, or ""."""
        mac = document.pop(_MAC, None)
        if self.kind is CacheTrust.DIRECTORY:
            return ""
        if self.key is None:
            return self.problem
        if mac is None:
            return "its manifest is signed with no key"
        return "" if self.key.vouches(canonical(document), mac) else "it was not made with this key"


ANYONE = Trust(CacheTrust.DIRECTORY, None, "")
"""Believes every manifest; for content that is verified otherwise, or only looked at."""


def reading_trust(kind: CacheTrust, key_file: Path | None, root: Path) -> Trust:
    """What vouches for the entries of a cache that is read; no key is made."""
    if kind is CacheTrust.DIRECTORY:
        _warn_of_directory_trust()
        return Trust(kind, None, "")
    try:
        key = read_key(key_file or _default_key_file(), outside=root)
    except FileNotFoundError as error:
        return Trust(kind, None, f"there is no key {error.filename} to verify it with")
    except (OSError, UntrustedEntryError) as error:
        return Trust(kind, None, f"there is no key to verify it with ({error})")
    return Trust(kind, key, "")


def publishing_trust(kind: CacheTrust, key_file: Path | None, root: Path) -> Trust:
    """What vouches for new entries; makes the key where there is none.

    Raises `UntrustedEntryError` where there can be none and one is needed.
    """
    key: MacKey | None = None
    problem = ""
    try:
        key = ensure_key(key_file or _default_key_file(), outside=root)
    except (OSError, UntrustedEntryError) as error:
        problem = str(error)
    trust = Trust(kind, key, problem)
    if not trust.can_publish:
        raise UntrustedEntryError(
            "There is no key to vouch for entries of the compile cache, so that none is stored: "
            f"{problem}. Name one with `--cache-key-file`."
        )
    return trust


def _default_key_file() -> Path:
    try:
        return default_key_file()
    except RuntimeError as error:
        raise UntrustedEntryError(f"the user has no home directory: {error}") from error


@functools.cache
def _warn_of_directory_trust() -> None:
    _log.warning(
        "The compile cache runs whatever lies in its directory (`--cache-trust=directory`): who "
        "can write there runs code as this user."
    )
