"""`ir check`: the conformance suite over ops and distributions by name, and its exit code."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import ir_core as ir
from ir_core.cli.arguments import parse_dtype
from ir_core.cli.errors import UsageError
from ir_core.errors import UnknownNameError, UnknownProviderError
from ir_core.implementation import Implementation
from ir_core.suggestion import suggest
from ir_core.testing import DTYPES, Report, check_implementations, to_junit


def run(options: argparse.Namespace) -> int:
    """Check what the names select and print the report; 1 if a check failed, 3 if none ran."""
    ir.load_plugins()
    chosen = select_implementations(options.name, options.provider)
    dtypes = tuple(map(parse_dtype, options.dtype)) if options.dtype else DTYPES
    report = check_implementations(chosen, dtypes=dtypes)
    if options.junit:
        _write(Path(options.junit), report)
    print(json.dumps(report.to_json(), indent=2) if options.json else report.to_text())
    if report.failures:
        return 1
    if not report.ok:
        print("ir check: nothing was checked, so nothing is known to conform", file=sys.stderr)
        return 3
    return 0


def select_implementations(
    names: Sequence[str], providers: Sequence[str] | None
) -> list[Implementation]:
    """Implementations of the named ops and those that the named distributions registered.

    Raises:
        UnknownNameError: a name that is neither an op nor a distribution.
        UnknownProviderError: a provider that none of them has.
    """
    registry = ir.registry()
    everything = [each for op in registry.values() for each in op.implementations.values()]
    origins = {_canonical(each.origin): each.origin for each in everything}
    chosen: list[Implementation] = [] if names else everything
    for name in names:
        if name in registry:
            chosen += registry[name].implementations.values()
        elif _canonical(name) in origins:
            chosen += [each for each in everything if _canonical(each.origin) == _canonical(name)]
        else:
            valid = (*registry, *origins.values())
            raise UnknownNameError(f"No op or distribution `{name}`; {suggest(name, valid)}")
    return _of_providers(list(dict.fromkeys(chosen)), providers)


def _of_providers(
    chosen: list[Implementation], providers: Sequence[str] | None
) -> list[Implementation]:
    if providers is None:
        return chosen
    known = {each.provider for each in chosen}
    for provider in providers:
        if provider not in known:
            raise UnknownProviderError(f"No provider `{provider}`; {suggest(provider, known)}")
    return [each for each in chosen if each.provider in providers]


def _write(path: Path, report: Report) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_junit(report), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write `{path}`: {error.strerror}") from error


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
