"""The command line's commands: serve (the default), cache and collect-env. It parses no settings.

cyclopts dispatches, shows help and the version, and writes shell completion; the tokens of
`serve` and `cache explain` go to `serve_shim.settings` as they are.
"""

from __future__ import annotations

import difflib
from collections.abc import MutableMapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from serve_shim.cli.cache import EXPLAIN, cache_app
from serve_shim.cli.cache_explain import explain
from serve_shim.cli.collect_env import collect_env
from serve_shim.cli.help import serve_signature
from serve_shim.cli.serve import serve
from serve_shim.errors import SettingsError

_HELP = "Serve a language model over an OpenAI-compatible HTTP API."
_EPILOGUE = (
    "Sources, later wins: --config file, variables, options in order of appearance. Lists are "
    "replaced whole. - and _ are interchangeable; --no-NAME turns a switch off. --help=TOPIC shows "
    "a heading, a setting, a section such as limits or compilation-config, or all."
)
_COMMANDS = ("serve", "collect-env", "cache")
_PARSED = ("collect-env", "cache", "--install-completion")


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Run one command line, without the program's name; return its exit code.

    Raises ServeShimError for everything a user can get wrong.
    """
    topics = [token[7:] for token in argv if token.startswith("--help=")]
    if topics:
        build_app(topics[0]).help_print([])
        return 0
    app = build_app()

    @app.meta.default
    def launch(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
        return _dispatch(app, tokens, environ)

    try:
        code = app.meta(
            list(argv), exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        raise SettingsError(str(error)) from None
    return code if isinstance(code, int) else 0


def build_app(topic: str | None = None) -> App:
    """The commands as cyclopts knows them; `topic` narrows what help shows of `serve`."""
    app = App("serve-shim", help=_HELP, help_epilogue=_EPILOGUE, version=version("serve-shim"))
    display = serve_signature(topic)
    app.default(display)
    if topic is None:
        app.command(display, name="serve")
        app.command(cache_app(display))
        app.command(collect_env, name="collect-env")
        app.register_install_completion_command()
    return app


def _dispatch(app: App, tokens: Sequence[str], environ: MutableMapping[str, str]) -> int:
    if tokens[:2] == EXPLAIN:
        return explain(tokens[2:], environ)
    if tokens and tokens[0] in _PARSED:
        code = app(list(tokens), exit_on_error=False, print_error=False)
        return code if isinstance(code, int) else 0
    if tokens[:1] == ("serve",):
        return serve(tokens[1:], environ)
    _refuse_misspelt_command(tokens)
    return serve(tokens, environ)


def _refuse_misspelt_command(tokens: Sequence[str]) -> None:
    """`colect-env` is no model: say so rather than look for it on the hub."""
    first = tokens[0] if tokens else ""
    near = difflib.get_close_matches(first, _COMMANDS, n=1, cutoff=0.8)
    if near and not Path(first).exists():
        raise SettingsError(
            f"`{first}`: did you mean the command `{near[0]}`? For a model of this name write "
            f"`--model {first}`."
        )
