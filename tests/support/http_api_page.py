"""Generates the row API sections of `docs/reference/http-api.md` from the OpenAPI description."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator


def description() -> dict[str, Any]:
    """Return the OpenAPI description that the service serves."""
    found: dict[str, Any] = json.loads(
        files("snowmelt.server.rows").joinpath("openapi.json").read_text("utf-8")
    )
    return found


def table() -> str:
    """Return a section for each operation, and then one for each message."""
    return "\n".join(_sections(description()))


def _sections(api: dict[str, Any]) -> Iterator[str]:
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            yield f"\n### {operation['operationId']}\n"
            yield f"{operation['summary']}.\n\n```text\n{method.upper()} {path}\n```\n"
            parameters = [_resolved(api, each) for each in operation.get("parameters", [])]
            named = [each for each in parameters if each["in"] != "path"]
            if named:
                yield "| parameter | in | required | meaning |\n| --- | --- | --- | --- |"
                for each in named:
                    required = "yes" if each.get("required") else "no"
                    yield f"| `{each['name']}` | {each['in']} | {required} | {each.get('description', '')} |"
                yield ""
            if "requestBody" in operation:
                yield f"Request body: {_content(operation['requestBody'])}\n"
            yield "| status | response |\n| --- | --- |"
            for status, response in sorted(operation["responses"].items()):
                answer = _resolved(api, response)
                content = _content(answer)
                text = answer.get("description", "").rstrip(".")
                yield f"| {status} | {text}{': ' if text and content else ''}{content} |"
    for name, schema in api["components"]["schemas"].items():
        yield f"\n### Message {name}\n"
        if schema.get("description"):
            yield f"{schema['description']}\n"
        yield "| field | type | meaning |\n| --- | --- | --- |"
        required = schema.get("required", [])
        for field, kind in schema.get("properties", {}).items():
            mark = ", required" if field in required else ""
            yield f"| `{field}` | {_type(kind)}{mark} | {kind.get('description', '')} |"


def _resolved(api: dict[str, Any], each: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in each:
        return each
    found: Any = api
    for part in each["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return cast("dict[str, Any]", found)


def _content(body: dict[str, Any]) -> str:
    shown = [
        f"`{kind}` {_type(each.get('schema', {}))}"
        for kind, each in body.get("content", {}).items()
    ]
    return " or ".join(each.strip() for each in shown)


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#message-{name.lower()})"
    if "items" in schema:
        return f"array of {_type(schema['items'])}"
    kind = schema.get("type", "")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    return kind
