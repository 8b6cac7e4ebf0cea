"""Writes docs/schema: JSON Schema of run.json, samples.jsonl and recommendation.json, from the
classes that read them.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from markup import clause, docstrings_of_fields, first_paragraph

from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.results.info import RunInfo
from commbench.results.recommendation import Recommendation

Schema: TypeAlias = dict[str, Any]
#: The JSON types of classes; every other annotation names further ones.
PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
DRAFT = "https://json-schema.org/draft/2020-12/schema"
#: What a line of samples.jsonl holds beside the fields of its record.
LINE: Schema = {
    "line": {"type": "integer", "description": "number to which later lines may refer"},
    "of": {
        "type": "integer",
        "description": "this line holds only what differs from the last one before it whose"
        " `line` has this number",
    },
}
#: What JSON holds beside the fields of a class.
ADDED: Mapping[str, Schema] = {
    "Record": {"kind": {"const": Record.kind}, **LINE},
    "TrainingRecord": {"kind": {"const": TrainingRecord.kind}, **LINE},
    "Recommendation": {
        "schema": {"type": "integer"},
        "paragraph": {"type": "string", "description": "the conclusion, in words"},
    },
}


def run_schema() -> Schema:
    """Return the schema of run.json."""
    return _document("run.json", RunInfo)


def recommendation_schema() -> Schema:
    """Return the schema of recommendation.json."""
    return _document("recommendation.json", Recommendation)


def sample_schema() -> Schema:
    """Return the schema of a line of samples.jsonl."""
    return _document("a line of samples.jsonl", Record, TrainingRecord)


def _document(title: str, *classes: type[Any]) -> Schema:
    definitions: dict[str, Schema] = {}
    references = [_of(cls, definitions) for cls in classes]
    definitions = dict(sorted(definitions.items()))
    return {"$schema": DRAFT, "title": title, "anyOf": references, "$defs": definitions}


def _of(hint: Any, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of an annotation; the classes in it are added to the definitions."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_typeddict(hint) or dataclasses.is_dataclass(hint):
        _define(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if hint is Any:
        return {}
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if origin is Literal:
        return {"enum": list(arguments)}
    return _of_parts(origin, arguments, definitions)


def _of_parts(origin: Any, arguments: Sequence[Any], definitions: dict[str, Schema]) -> Schema:
    """Return the schema of an annotation with arguments that are annotations."""
    if origin is Annotated:
        return _of(arguments[0], definitions)
    if origin in {Union, types.UnionType}:
        return {"anyOf": [_of(argument, definitions) for argument in arguments]}
    if origin in {dict, collections.abc.Mapping}:
        return {"type": "object", "additionalProperties": _of(arguments[1], definitions)}
    if origin is tuple and Ellipsis not in arguments:
        return {"type": "array", "prefixItems": [_of(each, definitions) for each in arguments]}
    return {"type": "array", "items": _of(arguments[0], definitions)}


def _define(cls: type[Any], definitions: dict[str, Schema]) -> None:
    """Add the definition of a class, unless it is there."""
    if cls.__name__ in definitions:
        return
    definitions[cls.__name__] = {}  # of classes that name each other
    texts = docstrings_of_fields(cls)
    properties = dict(ADDED.get(cls.__name__, {}))
    for name, hint in get_type_hints(cls, include_extras=True).items():
        if get_origin(hint) is ClassVar or hint is ClassVar:
            continue
        schema = _of(hint, definitions)
        if name in texts:
            schema["description"] = clause(texts[name])
        properties[name] = schema
    description = first_paragraph(cls)
    definitions[cls.__name__] = {
        "type": "object",
        "description": description,
        "properties": properties,
    }


#: The files of docs/schema.
SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "run.json": run_schema,
    "sample.json": sample_schema,
    "recommendation.json": recommendation_schema,
}


def schema_text(name: str) -> str:
    """Return a file of docs/schema."""
    return json.dumps(SCHEMAS[name](), indent=1, ensure_ascii=False) + "\n"
