"""JSON schemas as GBNF grammars, which `llama.Grammar` then enforces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llama_cpp.llama_grammar import json_schema_to_gbnf

from specchat.errors import GrammarError

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def gbnf_from_schema(schema: Mapping[str, Any]) -> str:
    """The GBNF grammar of a JSON schema (llama-cpp-python's converter).

    Raises GrammarError for what the converter does not support.
    """
    try:
        grammar: str = json_schema_to_gbnf(json.dumps(schema))
    except RecursionError:
        raise GrammarError("The JSON schema is nested too deeply.") from None
    except Exception as error:  # the converter raises many kinds
        raise GrammarError(
            f"The JSON schema cannot be turned into a grammar: {error or type(error).__name__}"
        ) from None
    return grammar
