"""Owns the Jinja environment for chat templates; refuses unlisted filters, methods and big results.

Jinja's immutable sandbox keeps a template from Python's internals and from changing its inputs.
On top of it every loop, call, print, concatenation, slice and container is charged to the budget.
"""

from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from serve_shim.tokenization.render_budget import BudgetExceededError, current_budget
from serve_shim.tokenization.template_filters import (
    allowed_filters,
    concat,
    each,
    emit,
    sliced,
    weighed,
)
from serve_shim.tokenization.template_growth import (
    check_power,
    formatted_size,
    joined_size,
    repeated_size,
    replaced_size,
)

_TEXT_METHODS = """
    capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit
    islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix
    replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title
    upper
"""
_METHODS: dict[type, tuple[str, ...]] = {
    str: tuple(_TEXT_METHODS.split()),
    dict: ("copy", "get", "items", "keys", "values"),
    list: ("copy", "count", "index"),
    tuple: ("count", "index"),
    int: (),
    float: (),
    bytes: (),
}
_MAX_DATE_FORMAT = 64


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Renders chat templates as transformers does; must run inside `render_budget`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Folding constants would run filters when the template is compiled, uncharged.
            optimized=False,
            extensions=[_GenerationTag, loopcontrols],
        )
        self.code_generator_class = _ChargingGenerator
        self.filters = {
            **allowed_filters(),
            "_each": each,
            "_emit": emit,
            "_concat": concat,
            "_sliced": sliced,
            "_weighed": weighed,
        }
        del self.globals["lipsum"]
        functions: dict[str, Any] = {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.globals.update(functions)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether `attr` is public and, on plain data, one of the listed methods."""
        for kind, methods in _METHODS.items():
            if isinstance(obj, kind):
                return attr in methods
        return super().is_safe_attribute(obj, attr, value)

    def call(*args: Any, **kwargs: Any) -> Any:
        """Charge a call, before it for text methods that can grow, after it for its result."""
        # Positional only, so that a template may call something with any keyword.
        self, context, function, *values = args
        budget = current_budget()
        budget.take_steps()
        _charge_method(function, values, kwargs)
        result = ImmutableSandboxedEnvironment.call(self, context, function, *values, **kwargs)
        if isinstance(result, str | list | tuple | dict):
            budget.take_chars(len(result))
            budget.weigh(result)
        elif isinstance(result, Namespace):
            budget.weigh(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Charge what an operator can make large, then apply it."""
        budget = current_budget()
        budget.take_steps()
        if operator == "*":
            budget.take_chars(repeated_size(left, right))
        elif operator == "**":
            check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            budget.take_chars(formatted_size(budget, left, right))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str | list | tuple):
            budget.take_chars(len(result))
            budget.weigh(result)
        return result


class _Charging(NodeTransformer):
    """Routes what can repeat or grow through the charging filters."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        node = self.generic_visit(node, *args, **kwargs)
        match node:
            case nodes.For():
                node.iter = _through("_each", node.iter)
            case nodes.Output():
                node.nodes = [_through("_emit", _as_constant(child)) for child in node.nodes]
            case nodes.Concat():
                return _through("_concat", nodes.List(node.nodes, lineno=node.lineno))
            case nodes.Getitem(arg=nodes.Slice()):
                return _through("_sliced", node)
            case nodes.List() | nodes.Dict():
                return _through("_weighed", node)
            case nodes.Tuple(ctx="load"):
                return _through("_weighed", node)
            case _:
                pass
        return node


class _ChargingGenerator(CodeGenerator):
    """Compiles a template after rewriting it."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        rewritten = _Charging().visit(node) if isinstance(node, nodes.Template) else node
        return super().visit(rewritten, *args, **kwargs)


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _through(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _as_constant(node: nodes.Node) -> nodes.Node:
    return (
        nodes.Const(node.data, lineno=node.lineno) if isinstance(node, nodes.TemplateData) else node
    )


def _charge_method(function: Callable[..., Any], values: list[Any], kwargs: dict[str, Any]) -> None:
    # Jinja wraps `format`, to check the attributes that its fields name.
    method = getattr(function, "__wrapped__", function)
    text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if not isinstance(text, str):
        return
    budget = current_budget()
    size = len(text)
    if name == "join" and values:
        values[0] = list(islice(values[0], budget.limits.steps))
        size = joined_size(budget, text, values[0])
    elif name == "replace" and len(values) >= 2:
        size = replaced_size(text, str(values[0]), str(values[1]))
    elif name == "format":
        size = formatted_size(budget, text, [values, kwargs])
    budget.take_chars(size)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    if len(pattern) > _MAX_DATE_FORMAT or any(character.isdigit() for character in pattern):
        raise BudgetExceededError("a date format that is too long or holds digits")
    return datetime.now().strftime(pattern)
