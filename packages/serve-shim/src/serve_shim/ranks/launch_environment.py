"""The environment of the supervisor, which decides how its Ray and the ranks authenticate."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from serve_shim.errors import RanksError
from serve_shim.ranks.cluster_address import check_address
from serve_shim.ranks.cluster_probe import ClusterAccess, probe_cluster
from serve_shim.ranks.launch_options import LaunchOptions
from serve_shim.ranks.process_mark import ProcessMark

_AUTH_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def without_api_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """All but the keys of the server's API, which no rank needs."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(("SERVE_SHIM_API_KEY", "VLLM_API_KEY"))
    }


def supervisor_environment(
    options: LaunchOptions, directory: Path, mark: ProcessMark, environ: Mapping[str, str]
) -> dict[str, str]:
    """`environ` without API keys, and what Ray needs to be as `options` want it.

    A local Ray has a token of its own in `directory`, for this user alone to read; it and its ranks
    inherit `options.environment`. A cluster gets the token that the user's variables or
    `~/.ray/auth_token` name.

    Raises:
        RanksError: there is no Ray at the address, or it lets in whoever can reach it.
    """
    common = {
        **without_api_keys(environ),
        **mark.environment,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Otherwise Ray looks for `uv run` among our parents, and runs it again for each rank.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        **_absolute_python_path(environ),
    }
    if options.ray_address is not None:
        return common | _access_to(options.ray_address, options, common)
    common.pop(_TOKEN, None)  # Ray prefers it to a file
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    return {
        **common,
        # Otherwise gloo listens on every interface.
        "GLOO_SOCKET_IFNAME": "lo",
        **without_api_keys(options.environment),
        _AUTH_MODE: "token",
        _TOKEN_PATH: str(token),
    }


def _access_to(address: str, options: LaunchOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """The mode in which Ray is to authenticate; a stranger has to be refused, and we have not."""
    check_address(address)
    stranger, member = {_AUTH_MODE: "disabled"}, {_AUTH_MODE: "token"}
    access, reason = probe_cluster(address, {**environ, **stranger})
    if access is ClusterAccess.OPEN and not options.allow_insecure_ray:
        raise RanksError(
            f"the Ray at {address} asks for no token: whoever reaches it can run code on its "
            f"nodes. Start it with {_AUTH_MODE}=token, or allow it with --allow-insecure-ray"
        )
    if access is ClusterAccess.OPEN:
        return stranger
    if access is ClusterAccess.REFUSED:
        access, reason = probe_cluster(address, {**environ, **member})
    if access is ClusterAccess.REFUSED:
        raise RanksError(
            f"the Ray at {address} refuses our token, or we have none; it is read from {_TOKEN}, "
            f"the file {_TOKEN_PATH}, or ~/.ray/auth_token"
        )
    if access is ClusterAccess.NOTHING:
        raise RanksError(f"no Ray answers at {address}: {reason}")
    return member


def _absolute_python_path(environ: Mapping[str, str]) -> dict[str, str]:
    """The supervisor works in another directory, so that Ray tells no rank to import from ours."""
    path = environ.get("PYTHONPATH", "")
    if not path:
        return {}
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(each) for each in path.split(os.pathsep))}
