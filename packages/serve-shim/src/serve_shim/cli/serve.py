"""The serve command: settings, then names in them, then the server; each if the last is right.

Heavy imports come late, so that a mistake in the settings is answered at once.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping, Sequence
from importlib.metadata import version
from ipaddress import ip_address

from serve_shim.cli.log import configure_logging
from serve_shim.cli.passes import check_passes
from serve_shim.settings import Resolved, Settings, non_default, read_api_keys, resolve
from serve_shim.settings.report import to_json, to_text
from serve_shim.startup import pause_collection, prepare_process, resume_collection

logger = logging.getLogger(__name__)


def serve(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Serve until stopped, or only check or print the settings; return the exit code.

    `environ` is the process's own: what torch reads on import is written to it. Raises
    SettingsError and whatever start-up raises on purpose.
    """
    pause_collection()
    try:
        return _serve(argv, environ)
    finally:
        resume_collection()


def is_open_to_others(settings: Settings) -> bool:
    """Whether the address to listen on can be reached from another machine."""
    if settings.uds is not None or settings.host == "localhost":
        return False
    try:
        return not ip_address(settings.host).is_loopback
    except ValueError:
        return True


def _serve(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    resolved = resolve(argv, environ)
    if resolved.print_config:
        print(to_json(resolved) if resolved.print_config == "json" else to_text(resolved))
        return 0
    settings = resolved.settings
    configure_logging(settings.log_level.value, settings.log_format)
    keys = read_api_keys(settings)
    threads = prepare_process(settings, environ)
    _check_priorities(resolved)
    check_passes(resolved)
    if resolved.dry_run:
        print("The settings are valid.")
        return 0
    logger.info("serve-shim %s, %d CPU threads", version("serve-shim"), threads)
    logger.info("non-default args: %s", non_default(resolved))
    if not keys and is_open_to_others(settings):
        logger.warning(
            "Listening on %s without an API key: anyone who can reach it may use the model. "
            "Set SERVE_SHIM_API_KEY or --api-key-file.", settings.host
        )  # fmt: skip
    return _run_server(settings)


def _check_priorities(resolved: Resolved) -> None:
    from serve_shim.cli.priorities import apply_priorities  # noqa: PLC0415 - imports torch

    apply_priorities(resolved)


def _run_server(settings: Settings) -> int:
    from serve_shim.server import run  # noqa: PLC0415 - imports the engine and the web stack

    return run(settings)
