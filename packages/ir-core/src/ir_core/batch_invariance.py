"""Reads the batch-invariance switch from the environment. Selection applies it."""

from __future__ import annotations

from collections.abc import Mapping

from ir_core.errors import SwitchError

_SWITCHES = ("IR_BATCH_INVARIANT", "VLLM_BATCH_INVARIANT")
_VALUES = {"": False, "0": False, "false": False, "off": False, "1": True, "true": True, "on": True}


def is_batch_invariant(environ: Mapping[str, str]) -> bool:
    """Whether `IR_BATCH_INVARIANT`, or its twin `VLLM_BATCH_INVARIANT`, is on.

    Raises:
        SwitchError: a value that is neither on nor off, or two switches that disagree.
    """
    answers = {name: read_switch(environ, name) for name in _SWITCHES if name in environ}
    if len(set(answers.values())) > 1:
        raise SwitchError(f"{' and '.join(answers)} disagree; set one of them.")
    return any(answers.values())


def read_switch(environ: Mapping[str, str], name: str) -> bool:
    """Value of an on/off variable; off when it is not set.

    Raises:
        SwitchError: a value that is neither on nor off.
    """
    text = environ.get(name, "")
    value = _VALUES.get(text.strip().lower())
    if value is None:
        raise SwitchError(f"{name}={text!r} is neither on nor off; use 1 or 0.")
    return value
