"""Owns turning messages into a prompt by a model's template; refuses to exceed its limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jinja2 import Template
from jinja2 import TemplateError as JinjaError

from serve_shim.errors import TemplateError, TokenizerError
from serve_shim.tokenization.render_budget import (
    BudgetExceededError,
    RenderLimits,
    render_budget,
)
from serve_shim.tokenization.template_sandbox import ChatEnvironment

_MAX_SOURCE = 1 << 20
_MAX_REASON = 400
_RESERVED = (
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "documents",
    "messages",
    "return_dict",
    "tokenize",
    "tools",
)


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template, another one for requests with tools where the model has it.

    `variables` are the special tokens' texts (`bos_token`, ...). Safe to use from threads.
    """

    default: Template
    with_tools: Template | None
    variables: Mapping[str, str]
    limits: RenderLimits = field(default_factory=RenderLimits)

    @classmethod
    def compile(
        cls, sources: str | Mapping[str, str], variables: Mapping[str, str], where: str
    ) -> "ChatTemplate":
        """Compile one source, or several by name of which `default` and `tool_use` are used.

        Raises `TokenizerError` that names `where` and the line for a malformed template.
        """
        named = {"default": sources} if isinstance(sources, str) else sources
        if "default" not in named:
            raise TokenizerError(f"{where}: chat templates {sorted(named)} have no `default`")
        tools = named.get("tool_use")
        return cls(
            _compile(named["default"], where),
            None if tools is None else _compile(tools, where),
            variables,
        )

    def with_limits(self, limits: RenderLimits) -> "ChatTemplate":
        """Return the same template under other limits."""
        return replace(self, limits=limits)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt; with `continue_final_message` it ends with the last message's text.

        Raises `TemplateError` with the reason: the template's own refusal, an error in it for
        these messages, or a limit on time and size.
        """
        if continue_final_message and add_generation_prompt:
            raise TemplateError(
                "`continue_final_message` and `add_generation_prompt` exclude each other",
                param="continue_final_message",
            )
        extra = _check_variables(variables or {})
        conversation = [_plain_message(message) for message in messages]
        template = self.with_tools if tools and self.with_tools else self.default
        names = dict(
            self.variables,
            **extra,
            messages=conversation,
            tools=None if tools is None else [_plain(tool) for tool in tools],
            documents=None,
            add_generation_prompt=add_generation_prompt,
        )
        text = _render(template, names, self.limits)
        return _cut_after_last_message(text, conversation) if continue_final_message else text


def _compile(source: str, where: str) -> Template:
    if len(source) > _MAX_SOURCE:
        raise TokenizerError(f"{where}: the chat template is longer than {_MAX_SOURCE} characters")
    try:
        return ChatEnvironment().from_string(source)
    except JinjaError as error:
        line = getattr(error, "lineno", None)
        raise TokenizerError(f"{where}: chat template, line {line}: {error.message}") from error
    except (RecursionError, SyntaxError, ValueError) as error:
        raise TokenizerError(f"{where}: the chat template cannot be compiled: {error}") from error


def _render(template: Template, names: Mapping[str, object], limits: RenderLimits) -> str:
    chunks: list[str] = []
    try:
        with render_budget(limits) as budget:
            for chunk in template.generate(names):
                budget.take_output(len(chunk))
                chunks.append(chunk)
    except BudgetExceededError as error:
        raise TemplateError(
            f"the chat template was stopped: it used {error}", code="chat_template_limit"
        ) from error
    except JinjaError as error:
        raise _refusal(error.message or type(error).__name__) from error
    except Exception as error:
        # A template is the checkpoint's code: whatever it runs into concerns this request only.
        raise _refusal(f"{type(error).__name__}: {error}") from error
    return "".join(chunks)


def _refusal(reason: str) -> TemplateError:
    return TemplateError(
        f"the chat template refused these messages: {reason[:_MAX_REASON]}",
        param="messages",
        code="chat_template_error",
    )


def _check_variables(variables: Mapping[str, object]) -> dict[str, object]:
    for name in variables:
        if name in _RESERVED or not name.isidentifier() or name.startswith("_"):
            raise TemplateError(
                f"template variable `{name[:80]}` cannot be set", param="chat_template_kwargs"
            )
    return {name: _plain(value) for name, value in variables.items()}


def _plain_message(message: object) -> dict[str, object]:
    """Copy a message without the keys that are null: templates print them as `None`."""
    if not isinstance(message, Mapping):
        raise TemplateError(
            f"a message is {type(message).__name__}, not an object", param="messages"
        )
    return {str(key): _plain(value) for key, value in message.items() if value is not None}


def _plain(value: object) -> object:
    """Copy JSON-like data; anything else could hand the template methods to call."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise TemplateError(f"messages may not hold {type(value).__name__}", param="messages")


def _cut_after_last_message(text: str, conversation: Sequence[Mapping[str, object]]) -> str:
    content = conversation[-1].get("content") if conversation else None
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = texts[-1] if texts else None
    if not isinstance(content, str) or not content.strip():
        raise TemplateError("the last message has no text to continue", param="messages")
    start = text.rfind(content.strip())
    if start < 0:
        raise TemplateError(
            "the chat template changes the last message, so it cannot be continued",
            param="continue_final_message",
        )
    # Templates may trim a message: keep its trailing space only where the template did.
    kept = content.lstrip()
    length = len(kept) if text.startswith(kept, start) else len(content.strip())
    return text[: start + length]
