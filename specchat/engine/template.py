"""Chat templates: from messages to the tokens a model was trained to see.

The GGUF's own Jinja template runs in `template_sandbox.Sandbox`. Message text cannot
become special tokens: `template_text` explains how the template's text is told apart.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

from specchat.engine.messages import Message
from specchat.engine.template_fallbacks import attempts
from specchat.engine.template_sandbox import Refused, Sandbox, TooMuch
from specchat.engine.template_text import Specials, literal
from specchat.errors import TemplateError

CHATML = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# For vocabularies without ChatML's tokens: "Role: text" paragraphs. Stop at "\nUser:".
PLAIN = """\
{%- for message in messages -%}
{{ message.role | capitalize }}: {{ message.content }}

{% endfor -%}
{% if add_generation_prompt %}Assistant:{% endif %}"""

# The opening and closing marks of reasoning that templates are known to use.
_THINKING = (
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|think|>", "<|end|>"),
    ("[THINK]", "[/THINK]"),
    ("<reasoning>", "</reasoning>"),
)
_THINK = re.compile(r"</((?:\w+:)?think\w*)>")
_ROLES = ("system", "user", "assistant", "tool")


class Tokenizer(Protocol):
    """What a chat template needs of a model's vocabulary."""

    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def bos_text(self) -> str: ...
    @property
    def eos_text(self) -> str: ...
    @property
    def add_bos(self) -> bool: ...

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        """Token ids of `text`; never adds BOS or EOS."""

    def special_texts(self) -> Mapping[str, int]:
        """Text -> id of every token recognised only with parse_special=True."""


class ChatTemplate:
    """A compiled chat template. `source` None means the GGUF has none: a default is used.

    The default (`.default` is True) is ChatML where the vocabulary has its `<|im_start|>`,
    else "User: …" and "Assistant: …" paragraphs. `now` is what `strftime_now` reads;
    `seconds` and `max_output` (characters, plus four times the input) limit one render.
    Raises TemplateError if the template is not valid Jinja.
    """

    def __init__(
        self,
        source: str | None,
        tokenizer: Tokenizer,
        *,
        now: Callable[[], datetime] = datetime.now,
        seconds: float = 2.0,
        max_output: int = 4 * 1024 * 1024,
    ) -> None:
        self.default = source is None
        special = tokenizer.special_texts()
        if source is None:
            source = CHATML if "<|im_start|>" in special else PLAIN
        self.source = source
        self._tokenizer = tokenizer
        self._special_ids = frozenset(special.values())
        self._specials = Specials(special)
        self._sandbox = Sandbox(source, now=now, seconds=seconds, max_output=max_output)
        # Templates agree on everything about earlier reasoning but its name.
        names = ("reasoning_content", "thinking", "reasoning")
        self._reasoning_key = next(
            (n for n in names if re.search(rf"message\.{n}\b|[\[(]['\"]{n}['\"]", source)), names[0]
        )

    @cached_property
    def thinking_tags(self) -> tuple[str, str] | None:
        """The marks around reasoning that the template mentions, if any."""
        for pair in _THINKING:
            if all(tag in self.source for tag in pair):
                return pair
        if match := _THINK.search(self.source):
            return f"<{match[1]}>", match[0]
        return None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text, for people; `tokens` is what a model evaluates.

        `continue_final` leaves the last message, an assistant's, open to be continued.
        `extra` gives further variables (such as enable_thinking). Where the template
        refuses or ignores system messages or repeated roles, they are merged into what it
        takes. Raises TemplateError if it still refuses, fails or passes a limit.
        """
        text = self._render(messages, tools, add_generation_prompt, continue_final, extra)
        return str.__getitem__(text, slice(None))

    def tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt as token ids; arguments and errors as for `render`.

        Starts with exactly one BOS where the vocabulary wants one. Special tokens come from
        the template alone, never from a message, a tool or `extra`.
        """
        text = self._render(messages, tools, add_generation_prompt, continue_final, extra)
        ids: list[int] = []
        for piece, parse_special in self._specials.pieces(text):
            # After a special token the tokenizer starts afresh, as it does for a new text.
            inside = bool(ids) and ids[-1] not in self._special_ids
            ids += self._piece_ids(piece, parse_special, inside)
        bos = self._tokenizer.bos
        rest = next((i for i, token in enumerate(ids) if token != bos), len(ids))
        start = [bos] if bos is not None and (rest or self._tokenizer.add_bos) else []
        return start + ids[rest:]

    def answer_tokens(self, text: str) -> list[int]:
        """Token ids of `text` as the beginning of an answer; never special ones."""
        return self._piece_ids(text, False, inside=True)

    def _piece_ids(self, piece: str, parse_special: bool, inside: bool) -> list[int]:
        ids = self._tokenize(piece, parse_special, inside)
        if parse_special:
            return ids
        forbidden = self._specials.contained(piece)
        if forbidden.isdisjoint(ids):
            return ids
        # Some vocabularies reach a special token by merging its letters: keep them apart.
        singles = [self._tokenize(char, False, inside or i > 0) for i, char in enumerate(piece)]
        return [token for single in singles for token in single if token not in forbidden]

    def _tokenize(self, text: str, parse_special: bool, inside: bool) -> list[int]:
        """Ids of `text`, without the space some vocabularies put before it if it is `inside`."""
        if inside and self._adds_space:
            newline = self._tokenizer.tokenize("\n", parse_special=False)
            ids = self._tokenizer.tokenize("\n" + text, parse_special=parse_special)
            if ids[: len(newline)] == newline:
                return ids[len(newline) :]
        return self._tokenizer.tokenize(text, parse_special=parse_special)

    @cached_property
    def _adds_space(self) -> bool:
        newline, alone, after = (
            self._tokenizer.tokenize(text, parse_special=False) for text in ("\n", "a", "\na")
        )
        return after[: len(newline)] == newline and after[len(newline) :] != alone

    # -- from messages to text -----------------------------------------------------------

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final: bool,
        extra: Mapping[str, Any] | None,
    ) -> str:
        if not messages:
            raise TemplateError("There are no messages to send. Write one first.")
        chat = [_normalised(message) for message in messages]
        end = ""
        if continue_final:
            if chat[-1].role != "assistant":
                raise TemplateError(
                    "Only an assistant's message can be continued; the last one is the "
                    f"{chat[-1].role}'s."
                )
            end = _nonce()
            chat[-1] = replace(chat[-1], content=chat[-1].content + end)
            add_generation_prompt = False
        if any(message.role == "tool" for message in chat) and not self._takes_tool_results:
            raise TemplateError(
                "This model's chat template has no place for tool results. "
                "Use a model made for tools, or send the result as a user message."
            )
        text = self._first_accepted(chat, tools, add_generation_prompt, extra)
        if end:
            cut = str.rfind(text, end)
            if cut < 0:
                raise TemplateError("This model's chat template cannot continue a message.")
            text = text[:cut]
        return text

    def _first_accepted(
        self,
        chat: list[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        extra: Mapping[str, Any] | None,
    ) -> str:
        refusal: Refused | None = None
        plainer = 0
        systems = [i for i, message in enumerate(chat) if message.role == "system"]
        if systems and not self._takes_system:
            plainer = 2
        elif any(systems) and not self._takes_late_systems:
            plainer = 1
        for attempt in attempts(chat)[plainer:]:
            try:
                return self._run(attempt, tools, add_generation_prompt, extra)
            except Refused as error:
                refusal = refusal or error
        raise TemplateError(f"The chat template refuses these messages: {refusal}") from None

    def _run(
        self,
        chat: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        extra: Mapping[str, Any] | None = None,
        text_arguments: bool | None = None,
    ) -> str:
        if text_arguments is None:
            has_calls = any(message.tool_calls for message in chat)
            text_arguments = has_calls and self._wants_text_arguments
        variables = {
            **(extra or {}),
            "messages": [self._as_dict(message, text_arguments) for message in chat],
            "tools": list(tools) if tools else self._no_tools,
            "add_generation_prompt": add_generation_prompt,
        }
        trusted = {
            "bos_token": literal(self._tokenizer.bos_text),
            "eos_token": literal(self._tokenizer.eos_text),
        }
        return self._sandbox.render_bounded(variables, trusted)

    def _as_dict(self, message: Message, text_arguments: bool) -> dict[str, Any]:
        result: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            result[self._reasoning_key] = message.reasoning
        if message.tool_calls:
            result["tool_calls"] = [_with_arguments(c, text_arguments) for c in message.tool_calls]
        for key in ("tool_call_id", "name"):
            if (value := getattr(message, key)) is not None:
                result[key] = value
        return result

    # -- what a template takes, found out by rendering probes -----------------------------

    def _shows(self, word: str, chat: Sequence[Message]) -> bool:
        try:
            return word in self._run(chat)
        except TooMuch:
            raise
        except TemplateError:
            return False

    @cached_property
    def _no_tools(self) -> list[Any] | None:
        """None, as Hugging Face passes, or [] for templates that loop over it unasked."""
        probe = {"messages": [{"role": "user", "content": "Hi"}], "tools": None}
        try:
            self._sandbox.render_bounded(probe, {"bos_token": "", "eos_token": ""})
        except TooMuch:
            raise
        except Refused:
            return None
        except TemplateError:
            return []
        return None

    @cached_property
    def _takes_system(self) -> bool:
        word = _nonce()
        return self._shows(word, [Message("system", word), Message("user", "Hi")])

    @cached_property
    def _takes_late_systems(self) -> bool:
        words = [_nonce() for _ in range(3)]
        first, second, late = (Message("system", word) for word in words)
        user = Message("user", "Hi")
        chat = [first, second, user, Message("assistant", "Yes"), late, user]
        return all(self._shows(word, chat) for word in words)

    @cached_property
    def _takes_tool_results(self) -> bool:
        word = _nonce()
        call = Message("assistant", "", tool_calls=(_probe_call({"a": "b"}),))
        result = Message("tool", word, tool_call_id="call00001", name="probe")
        return self._shows(word, [Message("user", "Hi"), call, result])

    @cached_property
    def _wants_text_arguments(self) -> bool:
        """Whether tool calls need their arguments as JSON text: an object comes out wrong."""
        name, word = _nonce(), _nonce()
        chat = [
            Message("user", "Hi"),
            Message("assistant", "", tool_calls=(_probe_call({name: word}),)),
        ]
        try:
            text = self._run(chat, text_arguments=False)
        except TemplateError:
            return True
        return f"{{'{name}'" in text


def _nonce() -> str:
    return "x" + "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(24))


def _normalised(message: Message) -> Message:
    role = "system" if message.role == "developer" else message.role
    # A literal role lets templates spell tokens such as "<|" ~ role ~ "|>".
    return replace(
        message, role=literal(role) if role in _ROLES else role, content=message.content or ""
    )


def _probe_call(arguments: dict[str, str]) -> dict[str, Any]:
    function = {"name": "probe", "arguments": arguments}
    return {"id": "call00001", "type": "function", "function": function}


def _with_arguments(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    arguments = function.get("arguments")
    if as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not as_text and isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {**call, "function": {**function, "arguments": arguments}}
