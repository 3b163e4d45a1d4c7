"""What templates may do with messages, and what is refused with which reason."""

import threading
from typing import Any

import pytest

from serve_shim.errors import TemplateError, TokenizerError
from serve_shim.tokenization.chat_template import ChatTemplate
from serve_shim.tokenization.render_budget import RenderLimits

_SIMPLE = """\
{% for message in messages %}
<{{ message['role'] }}>{{ message['content'] | trim }}</s>
{% endfor %}
{% if add_generation_prompt %}
<assistant>
{%- endif %}
"""


def _compile(source: str) -> ChatTemplate:
    return ChatTemplate.compile(source, {"bos_token": "<s>", "eos_token": "</s>"}, "model")


def _render(source: str, *contents: Any, **options: Any) -> str:
    messages = [{"role": "user", "content": content} for content in contents or ("hi",)]
    return _compile(source).render(messages, **options)


def test_blocks_are_trimmed_and_the_prompt_is_added() -> None:
    assert _render(_SIMPLE) == "<user>hi</s>\n<assistant>"
    assert _render(_SIMPLE, add_generation_prompt=False) == "<user>hi</s>\n"


def test_special_tokens_and_variables_are_there() -> None:
    text = _render("{{ bos_token }}{{ enable }}{{ documents }}", variables={"enable": True})
    assert text == "<s>TrueNone"


def test_tojson_keeps_html_and_unicode() -> None:
    assert _render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert _render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"


def test_transformers_extensions_work() -> None:
    assert _render("{% generation %}a{% endgeneration %}") == "a"
    assert (
        _render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )
    assert len(_render("{{ strftime_now('%Y-%m-%d') }}")) == 10


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages | map(attribute='content') | join(', ') }}", "hi, yo"),
        ("{{ (messages | selectattr('role', 'equalto', 'user') | list) | length }}", "2"),
        ("{{ messages[-1].content.split('o')[0] ~ 1 }}", "y1"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}"
            "{% set ns.n = ns.n + loop.index %}{% endfor %}{{ ns.n }}",
            "3",
        ),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '{}'.format(1) }}", "a-0071"),
        ("{{ messages[1:] | length }}{{ 'ab' * 2 }}{{ [1] + [2] }}", "1abab[1, 2]"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) }}", "<1>"),
        ("{% set block %}z{{ 1 }}{% endset %}{{ block }}", "z1"),
        ("{{ messages[0].content | replace('h', 'H') | indent(2, true) }}", "  Hi"),
        ("{% for m in messages recursive %}{{ loop.last }}{% endfor %}", "FalseTrue"),
    ],
)
def test_usual_constructs_give_what_jinja_gives(source: str, expected: str) -> None:
    assert _render(source, "hi", "yo") == expected


def test_null_keys_of_a_message_are_absent() -> None:
    template = _compile("{{ messages[0].content is defined }}")
    assert template.render([{"role": "assistant", "content": None}]) == "False"


def test_tools_choose_their_own_template() -> None:
    sources = {"default": "plain", "tool_use": "{{ tools[0].name }}"}
    template = ChatTemplate.compile(sources, {}, "model")
    assert template.render([]) == "plain"
    assert template.render([], tools=[{"name": "clock"}]) == "clock"


def test_named_templates_need_a_default() -> None:
    with pytest.raises(TokenizerError, match=r"\['rag'\] have no `default`"):
        ChatTemplate.compile({"rag": ""}, {}, "model")


def test_template_refusal_reaches_the_caller() -> None:
    with pytest.raises(TemplateError, match="roles must alternate") as caught:
        _render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"
    assert caught.value.code == "chat_template_error"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ missing.attribute }}", "'missing' is undefined"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% include 'other' %}", "no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_error_inside_a_template_is_a_request_error(source: str, reason: str) -> None:
    with pytest.raises(TemplateError, match=reason):
        _render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ (1).to_bytes(10, 'big') }}",
        "{{ 'a'.center(9) }}",
        "{{ 'a' | attr('center') }}{{ ('a' | attr('center'))(9) }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ '{0.__class__.x}'.format(messages) }}",
    ],
)
def test_unsafe_attributes_are_refused(source: str) -> None:
    with pytest.raises(TemplateError, match=r"unsafe|safely callable"):
        _render(source)


@pytest.mark.parametrize("name", ["messages", "chat_template", "tokenize", "_x", "a b"])
def test_variables_cannot_replace_what_the_server_sets(name: str) -> None:
    with pytest.raises(TemplateError, match="cannot be set"):
        _render("x", variables={name: 1})


def test_messages_are_plain_data_only() -> None:
    with pytest.raises(TemplateError, match=r"may not hold [Ll]ock"):
        _render("x", threading.Lock())
    with pytest.raises(TemplateError, match="str, not an object"):
        _compile("x").render(["hello"])  # type: ignore[list-item]


def test_final_message_is_continued_where_it_ends() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert _render(_SIMPLE, "hi", "so it ") == "<user>hi</s>\n<user>so it</s>\n<assistant>"
    assert _render(_SIMPLE, "hi", "so it ", **options) == "<user>hi</s>\n<user>so it"
    assert _render("{{ messages[0].content }}|", "so it ", **options) == "so it "
    parts = [{"type": "text", "text": "part"}]
    assert _render("{{ messages[0].content[0].text }}|", parts, **options) == "part"


@pytest.mark.parametrize(
    ("source", "content", "options", "reason"),
    [
        ("{{ messages[0].content|upper }}", "x", {}, "changes the last message"),
        ("x", "  ", {}, "no text to continue"),
        ("x", "x", {"add_generation_prompt": True}, "exclude each other"),
    ],
)
def test_final_message_that_cannot_be_continued(
    source: str, content: str, options: dict[str, bool], reason: str
) -> None:
    wanted = {"add_generation_prompt": False, "continue_final_message": True, **options}
    with pytest.raises(TemplateError, match=reason):
        _render(source, content, **wanted)


@pytest.mark.parametrize(
    "source", ["{% for x in %}", "{{ x | nonsense }}", "{{ x", "{{" + "(" * 5000]
)
def test_malformed_template_is_refused_when_compiled(source: str) -> None:
    with pytest.raises(TokenizerError, match=r"^model: .*chat template"):
        _compile(source)


def test_oversized_template_is_refused() -> None:
    with pytest.raises(TokenizerError, match="longer than"):
        _compile("x" * (1 << 20) + "y")


def test_limit_of_one_rendering_leaves_the_next_alone() -> None:
    inner = "{% for j in range(99999) %}{% endfor %}"
    template = _compile("{% for i in range(messages[0].content) %}" + inner + "{% endfor %}ok")
    template = template.with_limits(RenderLimits(seconds=5.0, steps=1_000_000))
    with pytest.raises(TemplateError, match="1000000 steps") as caught:
        template.render([{"content": 99999}])
    assert caught.value.code == "chat_template_limit"
    assert template.render([{"content": 3}]) == "ok"
