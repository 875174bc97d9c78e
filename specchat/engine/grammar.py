"""JSON schemas as GBNF grammars, which `llama.Grammar` then enforces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llama_cpp.llama_grammar import SchemaConverter

from specchat.errors import GrammarError

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

_PART = re.compile(r'\\.|\(\?:|\[\^?|\]|"|.', re.DOTALL)  # of a regular expression
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": " "}  # of these, what JSON texts hold unescaped
_NOT_IN_JSON = r'"\\\x00-\x1F'  # must be escaped within JSON's quotes
_DOT = f"[^{_NOT_IN_JSON}]"


class _Converter(SchemaConverter):  # type: ignore[misc]
    """llama-cpp-python's converter, without what makes it fail or allow texts that are no JSON:
    constants and keys with quotes, backslashes or emoji, references that go round or share a
    name, line breaks in texts, and patterns with `.`, `[^x]`, `\\d`, `\\.` or quotes.
    """

    def __init__(self) -> None:
        super().__init__(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        self._names: dict[str, str] = {}  # of rules, by reference

    def _add_rule(self, name: str, rule: str) -> str:
        if name == "char":
            rule = rule.replace(r'[^"\\]', _DOT)
        key: str = super()._add_rule(name, rule)
        return key

    def _generate_constant_rule(self, value: Any) -> str:
        return self._format_literal(json.dumps(value))

    def _format_literal(self, literal: str) -> str:
        text = json.dumps(json.loads(literal), ensure_ascii=False)
        if not text.isprintable():  # half a surrogate pair, for one
            text = literal
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def _resolve_ref(self, ref: str) -> str:
        name = self._names.setdefault(ref, f"ref-{len(self._names)}")
        if name not in self._rules and ref not in self._refs_being_resolved:
            self._refs_being_resolved.add(ref)
            name = self._names[ref] = self.visit(self._refs[ref], name)
            self._refs_being_resolved.remove(ref)
        return name

    def _visit_pattern(self, pattern: str, name: str) -> str:
        rule: str = super()._visit_pattern(_json_pattern(pattern), name)
        return rule


def gbnf_from_schema(schema: Mapping[str, Any]) -> str:
    """The GBNF grammar of a JSON schema (llama-cpp-python's converter).

    Raises GrammarError for what the converter does not support.
    """
    try:
        copy = json.loads(json.dumps(schema))  # the converter writes into it
        if "$ref" in copy:  # the converter would not look at what is beside it
            copy["anyOf"] = [{"$ref": copy.pop("$ref")}]
        converter = _Converter()
        converter.visit(converter.resolve_refs(copy, "stdin"), "")
        grammar: str = converter.format_grammar()
    except GrammarError:
        raise
    except RecursionError:
        raise GrammarError("The JSON schema is nested too deeply.") from None
    except Exception as error:  # the converter raises many kinds
        raise GrammarError(
            f"The JSON schema cannot be turned into a grammar: {error or type(error).__name__}"
        ) from None
    return grammar


def _json_pattern(pattern: str) -> str:
    """`pattern`, such that it matches the text as it is written between JSON's quotes, and
    with the escapes that the converter knows. Raises GrammarError for other escapes.
    """
    written: list[str] = []
    inside = negated = False  # of square brackets
    for part in _PART.findall(pattern):
        escaped = part[1:] if part[0] == "\\" else ""
        if not inside and part in ("[", "[^"):
            inside, negated = True, part == "[^"
        elif inside and part == "]":
            inside = False
            part = _NOT_IN_JSON + "]" if negated else part
        elif escaped.lower() in _CLASSES and not (inside and escaped.isupper()):
            members = _CLASSES[escaped.lower()]
            if not inside:
                members = f"[^{members}{_NOT_IN_JSON}]" if escaped.isupper() else f"[{members}]"
            part = members
        elif escaped.isalnum():
            raise GrammarError(f"The JSON schema's pattern {pattern!r} has an unsupported {part}.")
        elif inside:
            part = escaped if escaped and escaped not in r"\[]-" else part
        elif part == "(?:":
            part = "("
        elif part == ".":
            part = _DOT
        elif part == '"' or escaped == '"':
            part = r"\\" + '"'
        elif escaped == "\\":
            part = r"\\\\"
        elif escaped == "^":
            part = r"\x5E"
        elif escaped and escaped not in "[]()|{}*+?":
            part = f"[{escaped}]"
        written.append(part)
    return "".join(written)
