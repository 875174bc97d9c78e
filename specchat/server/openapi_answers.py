"""JSON schemas of what the endpoint answers, for its OpenAPI document."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_OBJECT: Schema = {"type": "object"}


def _object(optional: dict[str, Schema] | None = None, **required: Schema) -> Schema:
    properties = {name.rstrip("_"): schema for name, schema in required.items()}
    return {
        "type": "object",
        "required": list(properties),
        "properties": {**properties, **(optional or {})},
    }


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


ERROR = _object(
    error=_object(message=_TEXT, type_=_TEXT, param=_nullable(_TEXT), code=_nullable(_TEXT))
)

_USAGE = _object(
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    total_tokens=_COUNT,
    prompt_tokens_details=_object(cached_tokens=_COUNT),
    completion_tokens_details=_object(
        accepted_prediction_tokens=_COUNT,
        rejected_prediction_tokens=_COUNT,
        reasoning_tokens=_COUNT,
    ),
)
_TIMINGS = {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}}
_CALL = _object(id=_TEXT, type_=_one_of("function"), function=_object(name=_TEXT, arguments=_TEXT))
_LOGPROB = _object(token=_TEXT, logprob=_NUMBER, bytes=_array(_COUNT))
_MESSAGE = _object(
    {"reasoning_content": _TEXT, "tool_calls": _array(_CALL)},
    role=_one_of("assistant"),
    content=_nullable(_TEXT),
)
_FINISH = _one_of("stop", "length", "tool_calls")


def _completion(kind: str, **choice: Schema) -> Schema:
    return _object(
        id=_TEXT,
        object=_one_of(kind),
        created=_COUNT,
        model=_TEXT,
        choices=_array(
            _object({"specchat": _OBJECT}, index=_COUNT, finish_reason=_FINISH, **choice)
        ),
        usage=_USAGE,
        timings=_TIMINGS,
    )


CHAT = _completion(
    "chat.completion",
    message=_MESSAGE,
    logprobs=_nullable(_object(content=_array(_LOGPROB))),
)
COMPLETION = _completion(
    "text_completion",
    text=_TEXT,
    logprobs=_nullable(
        _object(
            tokens=_array(_TEXT),
            token_logprobs=_array(_NUMBER),
            top_logprobs=_array({"type": "object", "additionalProperties": _NUMBER}),
            text_offset=_array(_COUNT),
        )
    ),
)
RESPONSE = _object(
    id=_TEXT,
    object=_one_of("response"),
    created_at=_COUNT,
    status=_one_of("completed", "incomplete"),
    model=_TEXT,
    output=_array(
        _object(
            id=_TEXT,
            type_=_one_of("message", "reasoning", "function_call"),
            status=_one_of("completed", "incomplete"),
        )
    ),
    usage=_object(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT),
)
EMBEDDINGS = _object(
    object=_one_of("list"),
    data=_array(
        _object(
            object=_one_of("embedding"),
            index=_COUNT,
            embedding={"anyOf": [_array(_NUMBER), _TEXT]},
        )
    ),
    model=_TEXT,
    usage=_object(prompt_tokens=_COUNT, total_tokens=_COUNT),
)
MODEL = _object(id=_TEXT, object=_one_of("model"), created=_COUNT, owned_by=_TEXT, meta=_OBJECT)
MODELS = _object(object=_one_of("list"), data=_array(MODEL))
HEALTH = _object(status=_one_of("ok"), running=_COUNT, waiting=_COUNT)
STORED = _object(object=_one_of("list"), data=_array(_OBJECT), has_more={"type": "boolean"})
