"""The `cache` command: its commands as cyclopts shows and calls them. What they do is elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from cyclopts import App

EXPLAIN = ("cache", "explain")
"""The one that takes the settings of `serve`, so that cyclopts does not parse it."""

# By name: a start that serves imports none of them, so that they cannot describe themselves.
_FUNCTIONS = {
    "ls": ("cache_listing:list_entries", "Show what is there, and what cannot be used and why."),
    "verify": ("cache_listing:verify", "Read and check every file; exit with 1 if one is bad."),
    "export": ("cache_transfer:export", "Write entries to one file that `import` takes in."),
    "import": (
        "cache_transfer:import_entries",
        "Take in a bundle or a copied directory, with proof of its origin: its code will run.",
    ),
    "gc": ("cache_collection:collect", "Remove what is long unused or too much, and not in use."),
    "keygen": ("cache_transfer:keygen", "Make a pair of keys for bundles: FILE and FILE.pub."),
}
_EXPLAIN_HELP = (
    "Say which entry a start with these settings loads, or what differs (exit code 1). `--json` "
    "prints JSON. It loads the model and compiles nothing."
)


def cache_app(serve_options: Callable[..., None]) -> App:
    """The command with all below it; `serve_options` has the options of `serve`, to show."""
    app = App("cache", help="Look at the compile cache, carry it to other machines, make room.")
    app.command(serve_options, name="explain", help=_EXPLAIN_HELP)
    for name, (function, text) in _FUNCTIONS.items():
        app.command(f"serve_shim.cli.{function}", name=name, help=text)
    return app
