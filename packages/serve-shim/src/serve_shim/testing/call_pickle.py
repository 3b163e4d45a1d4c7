"""Calls and results as bytes, by Ray's copy of cloudpickle: functions travel by value."""

import io
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch


def pickle_call(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """A function, those of its module that it uses, and its arguments.

    Raises:
        TypeError, pickle.PicklingError: something that cannot be pickled.
    """
    cloudpickle = _cloudpickle()
    module = sys.modules.get(getattr(function, "__module__", ""))
    if module is None or not hasattr(module, "__file__"):
        return _dumps(cloudpickle, (function, args))
    # A rank need not be able to import a test.
    cloudpickle.register_pickle_by_value(module)
    try:
        return _dumps(cloudpickle, (function, args))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def unpickle(data: bytes) -> Any:
    """What a rank returned or raised."""
    return _cloudpickle().loads(data)


def torch_ops() -> Any:
    """What `torch.ops` is pickled as."""
    return torch.ops


def _dumps(cloudpickle: Any, value: Any) -> bytes:
    # With a function that says both `torch` and `.ops`, cloudpickle takes the module `torch.ops`
    # along, which is an object that cannot be pickled.
    class Pickler(cloudpickle.Pickler):
        dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
            {type(torch.ops): lambda _: (torch_ops, ())}
        )

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


def _cloudpickle() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray says at import is not the caller's
        from ray import cloudpickle  # noqa: PLC0415
    return cloudpickle
