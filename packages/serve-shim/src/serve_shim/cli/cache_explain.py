"""The command that says whether a start would find its compiled model, and if not why: `explain`.

It loads the model as a start does, compiles nothing and writes nothing to the cache.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping, Sequence

from serve_shim.cli.log import configure_logging
from serve_shim.cli.passes import check_passes
from serve_shim.errors import CompileCacheError
from serve_shim.settings import resolve
from serve_shim.startup import prepare_process

_JSON = "--json"


def explain(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Print the entry that a start with this command line loads, 0, or what differs, 1.

    Raises ServeShimError as a start does.
    """
    tokens = [each for each in argv if each != _JSON]
    resolved = resolve(tokens, environ)
    configure_logging("WARNING", resolved.settings.log_format)
    prepare_process(resolved.settings, environ)
    # They import torch.
    from serve_shim.cli.priorities import apply_priorities  # noqa: PLC0415
    from serve_shim.engine.build import look_up  # noqa: PLC0415

    apply_priorities(resolved)
    check_passes(resolved)
    try:
        directory = look_up(resolved.settings).cache.directory
        reasons: tuple[str, ...] = ()
    except CompileCacheError as error:
        if not error.reasons:
            raise
        directory, reasons = None, error.reasons
    status = "miss" if reasons else "hit"
    if _JSON in argv:
        print(json.dumps({"status": status, "directory": directory, "reasons": reasons}, indent=2))
    else:
        print("\n".join([f"hit: {directory}"] if not reasons else ["miss:", *reasons]))
    return 1 if reasons else 0
