"""The commands that carry compiled code between machines: `export`, `import` and `keygen`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ir_passes.cache.bundle import (
    export_bundle,
    import_bundle,
    import_directory,
    signature_path,
)
from ir_passes.cache.entry import Entry, Refused
from ir_passes.cache.signing import generate_key
from serve_shim.cli.cache_explain import explain
from serve_shim.cli.cache_store import Place, as_cache_error, command_line, open_store, select
from serve_shim.errors import CompileCacheError, SettingsError

_HERE = Place()

Unverified = Annotated[bool, Parameter(name=["--unverified", "--yes-i-trust-it"], negative="")]


def export(
    *names: str,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    signing_key: Path | None = None,
    place: Place = _HERE,
) -> int:
    """Write entries to one file, and print its digest and the command that takes them in.

    Parameters
    ----------
    names
        Beginnings of keys or ids.
    output
        The file to write.
    every
        Export all entries that can be used.
    signing_key
        Private key that signs the file, from `serve-shim cache keygen`.
    """
    if bool(names) == every:
        raise SettingsError("name the entries to export by their keys or ids, or give `--all`")
    store = open_store(place)
    found = select(store, names)
    refused = [each for each in found if isinstance(each, Refused)]
    if names and refused:
        raise CompileCacheError(refused[0].reason)
    entries = [each for each in found if isinstance(each, Entry)]
    with as_cache_error():
        sha256 = export_bundle(entries, output, signing_key=signing_key)
    print(f"{output}: {len(entries)} entries, sha256 {sha256}")
    print(f"Take them in with: {command_line('import', output.name, '--sha256', sha256)}")
    if signing_key is not None:
        print(
            f"or, beside {signature_path(output).name}, with: "
            f"{command_line('import', output.name, '--trusted-key', signing_key.name + '.pub')}"
        )
    return 0


def import_entries(
    source: Path,
    /,
    *,
    sha256: str | None = None,
    trusted_key: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    unverified: Unverified = False,
    model: Annotated[str | None, Parameter(name="--for")] = None,
    place: Place = _HERE,
) -> int:
    """Take in the entries of a bundle or of a copied directory, and vouch for them from now on.

    Compiled code runs as this user: a proof of its origin is required.

    Parameters
    ----------
    source
        A bundle, the root of a cache, or the directory of one entry.
    sha256
        Digest that `cache export`, or for a directory `cache verify`, printed where it was made.
    trusted_key
        Public key that signed the bundle; may be given again.
    unverified
        Take it in without proof: only what you made yourself.
    model
        Say afterwards whether a start of this model finds its entry; 1 if it does not.
    """
    store = open_store(place, writable=True)
    with as_cache_error():
        if source.is_dir():
            if trusted_key:
                raise SettingsError("`--trusted-key` is for bundles; a directory has no signature")
            entries = import_directory(store, source, sha256=sha256, unverified=unverified)
        else:
            entries = import_bundle(
                store, source, sha256=sha256, trusted_keys=trusted_key, unverified=unverified
            )
    for entry in entries:
        print(f"Imported {entry.directory}")
    if model is not None:
        return explain([model, *place.options], os.environ)
    print(f"See whether a start uses them: {command_line('explain', *place.options)}")
    return 0


def keygen(file: Path, /) -> int:
    """Make a pair of keys for bundles: FILE signs and stays here, FILE.pub goes to who imports.

    Parameters
    ----------
    file
        The private key's file; it must not be there.
    """
    with as_cache_error():
        generate_key(file)
    print(f"{file} signs bundles (`cache export --signing-key {file}`); keep it to yourself.")
    print(
        f"{file}.pub tells others that it was you (`cache import --trusted-key {file.name}.pub`)."
    )
    return 0
