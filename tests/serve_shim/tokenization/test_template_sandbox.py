"""Templates that would run for ever or fill the memory are stopped, each by a limit it meets."""

import tracemalloc

import pytest

from serve_shim.errors import TemplateError, TokenizerError
from serve_shim.tokenization.chat_template import ChatTemplate
from serve_shim.tokenization.render_budget import RenderLimits

_LIMITS = RenderLimits(seconds=0.3, work_chars=1 << 20, output_chars=1 << 18)
_MEBI = "'" + "a" * 1024 + "' * 1000"

_DEEP = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"


def _loop(body: str, count: int = 99999) -> str:
    return f"{{% for i in range({count}) %}}{body}{{% endfor %}}"


def _grow(step: str, use: str) -> str:
    return "{% set ns = namespace(x='ab') %}" + _loop(f"{{% set ns.x = {step} %}}", 60) + use


# Each entry is one way to repeat or grow that Jinja offers.
_ENDLESS = {
    "nested_loops": _loop(_loop("")),
    "calls_in_calls": _DEEP + "{{ f(99) }}",
    "filters_in_a_loop": _loop("{% set y = range(99999) | map('string') | list %}"),
    "comparisons": _loop("{{ range(99999) | list == range(99999) | list }}"),
    "set_block": "{% set x %}" + _loop(_loop("text")) + "{% endset %}",
    "long_output": _loop("0123456789"),
    "lazy_filters": _loop("{{ range(99999) | select('>', 99999) | first }}"),
    "recursive_loop": "{% for x in messages recursive %}{{ loop([1, 2]) }}{% endfor %}",
}
_LARGE = {
    "concatenation": _grow("ns.x ~ ns.x", "{{ ns.x }}"),
    "addition": _grow("ns.x + ns.x", "{{ ns.x }}"),
    "shared_lists": _grow("[ns.x, ns.x]", "{{ ns.x }}"),
    "shared_tuples": _grow("(ns.x, ns.x)", "{{ ns.x | string }}"),
    "shared_dicts": _grow("{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson }}"),
    "shared_by_call": _grow("dict(a=ns.x, b=ns.x)", "{{ ns.x }}"),
    "shared_namespaces": _grow("namespace(a=ns.x, b=ns.x)", "{{ ns.x }}"),
    "namespace_in_itself": "{% set ns = namespace(x=1) %}{% set ns.x = [ns, ns] %}{{ ns }}",
    "repetition": "{{ 'a' * 10000000000 }}",
    "repetition_of_lists": "{{ [0] * 10000000000 }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "indent_filter": "{{ 'a' | indent(10000000000, true) }}",
    "json_indent": "{{ [1] | tojson(indent=1000000000) }}",
    "join_filter": f"{{{{ range(99999) | join({_MEBI}) }}}}",
    "join_method": f"{{{{ ({_MEBI}).join(range(99999) | map('string')) }}}}",
    "replace_filter": f"{{{{ ({_MEBI}) | replace('a', {_MEBI}) }}}}",
    "replace_method": f"{{{{ ({_MEBI}).replace('', {_MEBI}) }}}}",
    "format_width": "{{ '{:>10000000000}'.format(1) }}",
    "format_computed_width": "{{ '{:>{}}'.format(1, 10000000000) }}",
    "format_repeated_field": "{{ ('{0}' * 9999).format('b' * 9999) }}",
    "percent_width": "{{ '%10000000000d' % 1 }}",
    "percent_computed_width": "{{ '%*d' % (10000000000, 1) }}",
    "date_width": "{{ strftime_now('%1000000000d') }}",
    "fromkeys": "{{ dict.fromkeys(range(99999), 'b' * 9999) | string }}",
    "slices": "{% set x = 'a' * 500000 %}" + _loop("{% set y = x[1:] %}", 3),
    "slices_in_namespaces": "{% set x = 'a' * 300000 %}{% set ns = namespace(p=0) %}"
    + _loop("{% set ns.p = namespace(q=ns.p, s=x[1:]) %}"),
    "namespaces": "{% set x = 'a' * 300000 %}{% set ns = namespace(p=0) %}"
    + _loop("{% set ns.p = namespace(q=ns.p, s=x) %}", 5),
    "sum_of_lists": "{{ range(9) | sum(start=[]) }}",
}


def _stop(source: str) -> str:
    template = ChatTemplate.compile(source, {}, "model").with_limits(_LIMITS)
    with pytest.raises(TemplateError) as caught:
        template.render([{"role": "user", "content": "x"}])
    return str(caught.value)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", _ENDLESS)
def test_endless_template_is_stopped(name: str) -> None:
    reason = _stop(_ENDLESS[name])
    assert "was stopped" in reason or "RecursionError" in reason


@pytest.mark.parametrize("name", _LARGE)
def test_growing_template_is_stopped_before_it_grows(name: str) -> None:
    tracemalloc.start()
    try:
        reason = _stop(_LARGE[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "was stopped" in reason
    assert peak < 64 << 20


@pytest.mark.parametrize("name", ["center(9)", "batch(9)", "slice(9)", "urlize", "wordwrap(1)"])
def test_unlisted_filters_do_not_exist(name: str) -> None:
    with pytest.raises(TokenizerError, match="No filter named"):
        ChatTemplate.compile("{{ 'a' | " + name + " }}", {}, "model")


def test_lipsum_does_not_exist() -> None:
    template = ChatTemplate.compile("{{ lipsum(n=9) }}", {}, "model")
    with pytest.raises(TemplateError, match="'lipsum' is undefined"):
        template.render([])
