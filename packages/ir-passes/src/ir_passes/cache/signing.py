"""Ed25519 signatures of bundles, by keys in PEM files. Needs `cryptography`, when it is used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ir_passes.cache.key_file import read_secret
from ir_passes.cache.safe_files import make_directories
from ir_passes.errors import BundleError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

_PURPOSE = b"compile cache bundle v1\n"
_MAX_FILE = 1 << 16


def generate_key(path: Path) -> None:
    """Write a new private key to `path`, for its owner only, and the public one to `path`.pub.

    Raises `BundleError` if one of the files is there already or cannot be written.
    """
    _require_cryptography()
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    try:
        make_directories(path.parent)
        _write_new(path, private, 0o600)
        _write_new(path.with_name(f"{path.name}.pub"), public, 0o644)
    except OSError as error:
        raise BundleError(
            f"{error.filename}: the key cannot be written: {error.strerror}"
        ) from error


def sign(sha256: str, private_key: Path) -> str:
    """Sign a bundle by its digest.

    Raises `BundleError` for what is no key and `UntrustedEntryError` for one that others can read.
    """
    return _load_private(private_key).sign(_PURPOSE + sha256.encode()).hex()


def find_signer(sha256: str, signature: str, public_keys: Sequence[Path]) -> Path | None:
    """Which of the keys signed the digest; `BundleError` for a key that cannot be read."""
    keys = [(path, _load_public(path)) for path in public_keys]
    try:
        raw = bytes.fromhex(signature)
    except ValueError:
        return None
    return next((path for path, key in keys if _is_signed(key, raw, sha256)), None)


def _is_signed(key: Ed25519PublicKey, signature: bytes, sha256: str) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    try:
        key.verify(signature, _PURPOSE + sha256.encode())
    except InvalidSignature:
        return False
    return True


def _load_private(path: Path) -> Ed25519PrivateKey:
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(read_secret(path), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise BundleError(f"{path} is no private key in PEM that can be read: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BundleError(f"{path} is no private Ed25519 key")
    return key


def _load_public(path: Path) -> Ed25519PublicKey:
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            key = load_pem_public_key(file.read(_MAX_FILE))
    except (OSError, ValueError) as error:
        raise BundleError(f"{path} is no public key in PEM that can be read: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BundleError(f"{path} is no Ed25519 public key")
    return key


def _require_cryptography() -> None:
    if find_spec("cryptography") is None:
        raise BundleError(
            "Signatures need the package cryptography: `pip install 'serve-shim[signing]'`"
        )


def _write_new(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)
