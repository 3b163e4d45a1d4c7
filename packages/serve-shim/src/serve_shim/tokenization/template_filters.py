"""Owns the filters a chat template may use, each charged to the budget; refuses all others."""

import functools
import json
from collections.abc import Callable, Mapping, Sized
from itertools import islice
from typing import Any

from jinja2 import Undefined, pass_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context

from serve_shim.tokenization.render_budget import BudgetExceededError, current_budget
from serve_shim.tokenization.template_growth import joined_size, replaced_size

Filter = Callable[..., Any]

_JINJA: Mapping[str, Filter] = FILTERS

_PLAIN = (
    "abs attr count d default dictsort first float groupby int items last length list map max min "
    "reject rejectattr reverse round select selectattr sort unique"
)
_TEXT = "capitalize e escape lower safe string title trim truncate upper wordcount"
_MAX_JSON_INDENT = 16


def allowed_filters() -> dict[str, Filter]:
    """Return name to filter: Jinja's own that stay within bounds, the rest replaced or absent."""
    filters = {name: _charged(_JINJA[name]) for name in _PLAIN.split()}
    filters |= {name: _charged(_weighed_first(_JINJA[name])) for name in _TEXT.split()}
    own = {"indent": indent, "join": join, "replace": replace, "sum": total, "tojson": to_json}
    return filters | own


@pass_context
def each(context: Context, value: Any) -> Any:
    """Charge the turns of a loop over `value` before it starts; iterators become lists."""
    budget = current_budget()
    if isinstance(value, Undefined):
        return value
    if not isinstance(value, Sized):
        value = list(islice(value, budget.limits.steps))
    budget.take_steps(len(value))
    return value


@pass_context
def emit(context: Context, value: object) -> object:
    """Charge what is about to be printed."""
    budget = current_budget()
    budget.take_steps()
    budget.take_chars(budget.weigh(value))
    return value


@pass_context
def concat(context: Context, values: list[object]) -> str:
    """Concatenate as `~` does, charged first."""
    budget = current_budget()
    budget.take_chars(joined_size(budget, "", values))
    return "".join(map(str, values))


@pass_context
def weighed(context: Context, value: object) -> object:
    """Check that a container written in the template does not share its parts into a giant."""
    budget = current_budget()
    budget.take_steps()
    budget.weigh(value)
    return value


@pass_context
def sliced(context: Context, value: object) -> object:
    """Charge the copy that a slice is."""
    budget = current_budget()
    budget.take_steps()
    if isinstance(value, str | list | tuple):
        budget.take_chars(len(value))
    return value


@pass_context
def join(context: Context, value: Any, d: str = "", attribute: str | None = None) -> str:
    """Join as Jinja does, charged first."""
    items = each(context, value)
    current_budget().take_chars(joined_size(current_budget(), d, list(items)))
    return _JINJA["join"](context.eval_ctx, items, d, attribute)


@pass_context
def replace(context: Context, s: object, old: str, new: str, count: int | None = None) -> str:
    """Replace as Jinja does, charged first."""
    budget = current_budget()
    budget.take_chars(budget.weigh(s))
    text = str(s)
    budget.take_chars(replaced_size(text, str(old), str(new)))
    return _JINJA["replace"](context.eval_ctx, text, old, new, count)


@pass_context
def total(context: Context, value: Any, attribute: str | None = None, start: object = 0) -> Any:
    """Sum numbers; a start that is no number is refused."""
    if not isinstance(start, int | float):
        raise BudgetExceededError("a sum of something other than numbers")
    current_budget().take_steps()
    return _JINJA["sum"](context.environment, value, attribute, start)


def indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Indent as Jinja does, charged first."""
    budget = current_budget()
    added = len(width) if isinstance(width, str) else width
    budget.take_chars(len(s) + (s.count("\n") + 1) * max(added, 0))
    return _JINJA["indent"](s, width, first, blank)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Dump without escaping HTML, as chat templates expect it."""
    budget = current_budget()
    if indent is not None and not 0 <= indent <= _MAX_JSON_INDENT:
        raise BudgetExceededError(f"an indent other than 0..{_MAX_JSON_INDENT}")
    # Each line is indented by its depth, which the weight bounds too.
    budget.take_chars(budget.weigh(value) * (1 + (indent or 0)))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _charged(function: Filter) -> Filter:
    @functools.wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.take_steps()
        result = function(*args, **kwargs)
        if isinstance(result, str | list | tuple | dict):
            budget.take_chars(len(result))
            budget.weigh(result)
        return result

    return charged


def _weighed_first(function: Filter) -> Filter:
    @functools.wraps(function)
    def weighed_first(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.take_chars(budget.weigh([*args, *kwargs.values()]))
        return function(*args, **kwargs)

    return weighed_first
