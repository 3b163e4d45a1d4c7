"""The API keys that requests may carry, from the settings and from the file they name."""

from __future__ import annotations

from pydantic import SecretStr

from serve_shim.errors import SettingsError
from serve_shim.settings.tree import Settings


def read_api_keys(settings: Settings) -> tuple[SecretStr, ...]:
    """All accepted keys; empty means that the server is open.

    The file holds one key a line; blank lines and lines that begin with `#` are skipped. Raises
    SettingsError where the file cannot be read or holds no key.
    """
    path = settings.api_key_file
    if path is None:
        return settings.api_key
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise SettingsError(f"`api_key_file` {str(path)!r} cannot be read: {reason}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise SettingsError(f"`api_key_file` {str(path)!r} holds no key; the server would be open")
    return (*settings.api_key, *(SecretStr(key) for key in keys))
