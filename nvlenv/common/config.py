"""From YAML files to validated models: where files lie, overrides, and every mistake told in one line.

What ships with the package, configs/ and checkpoints/release/, lies at the top of the repository and, once installed,
in share/nvlenv/ of the Python environment.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nvlenv.common.errors import InputError, brief

M = TypeVar("M", bound=BaseModel)
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]

Steps = tuple[str | int, ...]  # keys and list indices from the top of a file to a value

_TOP = Path(__file__).resolve().parents[2]  # the repository, or the folder that packages are installed in
# Below the folder of packages with `pip --target`, and three folders above it in an environment, which need not be the
# one that runs; on Windows, or where a distribution moves packages, only the running one tells.
ROOTS = (_TOP, *(base / "share" / "nvlenv" for base in dict.fromkeys((_TOP, *_TOP.parents[2:3], Path(sys.prefix)))))
CONFIG_ROOTS = tuple(root / "configs" for root in ROOTS)

# What pydantic expected, in the words of a settings file; other kinds of errors keep pydantic's words.
EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("string_type", "string_too_short"), "text"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a mapping"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    "missing": "a value",
}


class Model(BaseModel):
    """Frozen, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def shipped(path: str) -> Path:
    """A file or folder that ships with the package, such as "checkpoints/release/policy.npz".

    Raises `InputError` if it lies neither in this repository nor in an installation.
    """
    for root in ROOTS:
        if (found := root / path).exists():
            return found
    raise InputError(path, "", "no such file", f"it at {ROOTS[0]} or in {ROOTS[-1]}: install the package again")


def config_names(kind: str) -> list[str]:
    """Names of the shipped settings of a kind, which is a folder of configs/: "scenarios" or "train"."""
    return sorted({file.stem for root in CONFIG_ROOTS for file in (root / kind).glob("*.yaml")})


def find_config(kind: str, name: str | Path) -> Path:
    """The file that is meant: a path, or the name of shipped settings. Raises `InputError` if there is neither."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    for root in CONFIG_ROOTS:
        if (file := root / kind / f"{name}.yaml").is_file():
            return file
    raise InputError(kind, "", repr(str(name)), f"a .yaml file or {_nearest(str(name), config_names(kind))}")


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises `InputError` if it cannot be read, with line and column of bad syntax."""
    try:
        data = yaml.load(path.read_text("utf-8"), _Loader)
    except OSError as error:
        raise InputError(path, "", (error.strerror or str(error)).lower(), "a readable file") from None
    except UnicodeDecodeError:
        raise InputError(path, "", "bytes that are not UTF-8", "a text file in UTF-8") from None
    except yaml.YAMLError as error:
        raise _syntax_error(path, error) from None
    if not isinstance(data, dict):
        raise InputError(path, "", "nothing" if data is None else brief(data), "a mapping of field names to values")
    return data


def load_config(
    model: type[M], path: Path, overrides: Sequence[str] = (), defaults: Mapping[str, Any] | None = None
) -> M:
    """Read a file, apply overrides and validate.

    Parameters
    ----------
    model : what the file describes; its unknown keys should be forbidden.
    path : a YAML file.
    overrides : "dotted.path=value" with a value in YAML; elements of lists go by number or by their `name`.
    defaults : values of keys that the file leaves out.

    Raises
    ------
    InputError : the first mistake, with the file (or the override), the field, what was found and what was expected.
    """
    data = {**(defaults or {}), **read_yaml(path)}
    steps = {text: _override(data, text) for text in overrides}
    try:
        return validated(model, data, path)
    except InputError as error:
        blamed = [text for text, path in steps.items() if f"{error.field}.".startswith(f"{_dotted(data, path)}.")]
        if not blamed:
            raise
        raise InputError(f"override {blamed[-1]}", error.field, error.found, error.expected) from None


def validated(model: type[M], data: Any, where: str | Path, path: Callable[[Any, Steps], str] | None = None) -> M:
    """The model that the data describe. Raises `InputError` for the first mistake; `path` writes its place, dotted."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = _first_problem(model, data, error, path or _dotted)
        raise InputError(where, problem.field, problem.found, problem.expected) from None


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, where YAML would silently keep the second."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f"the key {key.value!r} a second time"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _syntax_error(where: Path | str, error: yaml.YAMLError) -> InputError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        place = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
        return InputError(where, place, f"a mistake ({error.problem})", "valid YAML")
    return InputError(where, "", " ".join(str(error).split()), "valid YAML")


def _override(data: dict[str, Any], text: str) -> Steps:
    """Set the value that "dotted.path=value" names; returns the steps to it."""
    where = f"override {text}"
    dotted, equals, value = text.partition("=")
    names = dotted.strip().split(".")
    if not equals or not all(names):
        raise InputError(where, "", "no assignment", "dotted.path=value")
    try:
        parsed = yaml.load(value, _Loader)
    except yaml.YAMLError as error:
        raise _syntax_error(where, error) from None
    here: Any = data
    steps: list[str | int] = []
    for depth, name in enumerate(names):
        step = _step_into(here, name, where, ".".join(names[:depth]))
        steps.append(step)
        if depth == len(names) - 1:
            here[step] = parsed
        elif isinstance(here, dict) and here.get(step) is None:
            here[step] = {}
        here = here[step]
    return tuple(steps)


def _step_into(here: Any, name: str, where: str, path: str) -> str | int:
    """The key or index that `name` means in a mapping or a list."""
    if isinstance(here, dict):  # keys may be numbers
        return next((key for key in here if str(key) == name), name)
    if not isinstance(here, list):
        raise InputError(where, path, brief(here), f"a mapping that could hold {name}")
    known = [str(item["name"]) if isinstance(item, dict) and "name" in item else str(i) for i, item in enumerate(here)]
    if name in known:
        return known.index(name)
    if name.isdecimal() and int(name) < len(here):
        return int(name)
    raise InputError(where, path, repr(name), _nearest(name, known))


def _first_problem(
    model: type[BaseModel], data: Any, error: ValidationError, path: Callable[[Any, Steps], str]
) -> InputError:
    """What to say about the first mistake; misspelt names go first, since they explain what is missing."""
    errors = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    paths = [_steps(data, e) for e in errors]
    # Of the alternatives for one value, the one that got deeper is the one that was meant.
    deepest = [p for p in dict.fromkeys(paths) if not any(q != p and q[: len(p)] == p for q in paths)]
    steps = deepest[0]
    told = [_problem(model, data, e, p, path(data, p)) for e, p in zip(errors, paths, strict=True) if p == steps]
    expected = " or ".join(dict.fromkeys(problem.expected for problem in told))
    if len(deepest) > 1:
        expected += f" (and {len(deepest) - 1} more)"
    return InputError("", told[0].field, told[0].found, expected)


def _steps(data: Any, error: Any) -> Steps:
    """pydantic's location without the names of the alternatives that it tried."""
    *location, last = error["loc"] if error["type"] == "missing" else (*error["loc"], None)
    steps: list[str | int] = []
    for step in location:
        if step in data if isinstance(data, dict) else isinstance(data, list) and isinstance(step, int):
            steps.append(step)
            data = data[step]
    return tuple(steps) if last is None else (*steps, last)


def _problem(model: type[BaseModel], data: Any, error: Any, steps: Steps, field: str) -> InputError:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        known = sorted({name for m in _models_at(model, data, steps[:-1]) for name in m.model_fields})
        return InputError("", field, f"unknown field {steps[-1]!r}", _nearest(str(steps[-1]), known))
    if kind.startswith("union_tag"):
        tag = context["discriminator"].strip("'")
        kinds = _models_at(model, data, steps, any_tag=True)
        tags = [name for m in kinds for name in get_args(m.model_fields[tag].annotation)]
        found = repr(context["tag"]) if "tag" in context else "nothing"
        return InputError("", f"{field}.{tag}", found, _nearest(context.get("tag", ""), tags))
    cause = context.get("error")
    if isinstance(cause, InputError):
        return InputError("", ".".join(filter(None, (field or cause.where, cause.field))), cause.found, cause.expected)
    if isinstance(cause, ValueError):
        return InputError("", field, f"that {cause}", "settings that agree")
    found = "nothing" if kind == "missing" else brief(error["input"])
    return InputError("", field, found, EXPECTED.get(kind) or _plain(error["msg"]))


def _plain(message: str) -> str:
    """What pydantic says should be, as the end of a sentence that says "expected"."""
    words = re.sub(r"^\w+ should (be |have )?| after validation.*", "", message)
    return f"a number {words}" if words.startswith(("greater", "less")) else words


def _models_at(model: type[BaseModel], data: Any, steps: Steps, any_tag: bool = False) -> list[type[BaseModel]]:
    """The models that may describe the value at `steps`; alternatives whose tag is another one are left out."""
    models = [model]
    for step in steps:
        data = data[step]
        if isinstance(step, str):
            fields = [m.model_fields[step].annotation for m in models if step in m.model_fields]
            models = [inner for annotation in fields for inner in _models_in(annotation)]
        if not any_tag and isinstance(data, dict):
            models = [m for m in models if _tag_fits(m, data)] or models
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _tag_fits(model: type[BaseModel], data: Mapping[str, Any]) -> bool:
    """Whether every field with a fixed list of values has one of them."""
    fixed = {n: f for n, f in model.model_fields.items() if get_origin(f.annotation) is Literal}
    return all(data.get(name, field.default) in get_args(field.annotation) for name, field in fixed.items())


def _dotted(data: Any, steps: Steps) -> str:
    """The path as a person writes it: elements of lists by their name, if they have one."""
    words: list[str] = []
    for step in steps:
        data = data.get(step) if isinstance(data, dict) else data[step]
        named = isinstance(step, int) and isinstance(data, dict) and "name" in data
        words.append(str(data["name"] if named else step))
    return ".".join(words)


def _nearest(name: str, known: Sequence[str]) -> str:
    """The known names that look like this one, or else all of them."""
    names = difflib.get_close_matches(name, known, n=2) or list(known)
    return " or ".join(names) if len(names) <= 2 else f"one of {', '.join(names)}"
