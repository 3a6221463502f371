"""Tools that a policy calls: functions with type hints."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from .errors import RefusedError, describe

NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
NAMES[type(None)] = "null"


class Tools:
    """The tools of a function, or of a list of functions."""

    def __init__(self, found: Any) -> None:
        functions = [found] if callable(found) else found
        if not isinstance(functions, Sequence) or not functions or not all(map(callable, functions)):
            raise RefusedError("it is neither a function nor a list of functions")
        self._functions: dict[str, Callable[..., Any]] = {f.__name__: f for f in functions}
        self._tools = [declaration(function) for function in functions]
        self.form = "tools"
        self.operations = {"describe": self.describe, "call": self.call}

    def describe(self, _: Any) -> dict[str, Any]:
        """The declarations of all tools."""
        return {"tools": self._tools}

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Calls a tool. An exception is a result, which the policy sees without the traceback."""
        try:
            value = self._functions[request["tool"]](**request["arguments"])
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        except KeyboardInterrupt:
            raise
        except Exception as error:
            summary = describe(error).partition("\nTraceback")[0]
            return {"result": {"text": summary, "is_error": True}}
        return {"result": {"text": text}}


def declaration(function: Callable[..., Any]) -> dict[str, Any]:
    """Name, description and parameters of a function, from its signature and docstring."""
    description, documented = docstring(inspect.getdoc(function) or "")
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        raise RefusedError(f"the type hints of `{function.__name__}` cannot be read") from error
    properties: dict[str, Any] = {}
    required = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise RefusedError(
                f"`{function.__name__}` has a parameter that cannot be given by name: `{parameter}`"
            )
        if name not in hints:
            raise RefusedError(f"parameter `{name}` of `{function.__name__}` has no type hint")
        properties[name] = schema(hints[name], name)
        if text := documented.get(name):
            properties[name]["description"] = text
        if parameter.default is parameter.empty:
            required.append(name)
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {"name": function.__name__, "description": description, "parameters": parameters}


def schema(hint: Any, name: str) -> dict[str, Any]:
    """JSON schema of a type hint."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if hint in NAMES:
        return {"type": NAMES[hint]}
    if origin is typing.Annotated:
        return schema(arguments[0], name)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema(argument, name) for argument in arguments]}
    if origin is list:
        return {"type": "array", "items": schema(arguments[0], name)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema(arguments[1], name)}
    raise RefusedError(f"the type hint {hint!r} of `{name}` is not supported")


def docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, and the texts of parameters: those of Google's style, or of lines `:param name: text`."""
    documented: dict[str, str] = dict(re.findall(r"^:param (?:\w+ )?(\w+):\s*(.*)$", text, re.MULTILINE))
    description, _, rest = text.partition("\nArgs:\n")
    section = re.split(r"^\S", rest, maxsplit=1, flags=re.MULTILINE)[0]
    last = ""
    for line in section.splitlines():
        if found := re.match(r"\s+(\w+)(?: \([^)]*\))?:\s*(.*)$", line):
            last, documented[found[1]] = found[1], found[2]
        elif last and line.strip():
            documented[last] += " " + line.strip()
    description = re.split(
        r"^(?::param|Returns:|Raises:|Args:)", description, maxsplit=1, flags=re.MULTILINE
    )[0]
    return description.strip(), documented
