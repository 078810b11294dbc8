"""The rules of the house, as far as a program can check them: sizes, names, docstrings, imports.

`python -m tests.test_house [FOLDER]` lists every place that breaks one.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("nvlenv", "agents")
MOST_LINES = 26_600  # of product code; a ratchet: it only goes down, towards 23,000
MOST_FILES = 12  # at the top of a folder
# Names that are a role, which several files play: a command line, a study, the formats that a reader knows.
ROLES = {"main", "study"}
EXTRAS = {
    "torch", "stable_baselines3", "sb3_contrib", "tensorboard", "matplotlib", "ray", "kubernetes", "fastapi", "uvicorn",
    "starlette", "prometheus_client", "optuna", "cma", "onnx", "onnxruntime", "selenium", "tqdm", "rich", "scipy",
    "jinja2",
}  # fmt: skip
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def sources() -> dict[str, ast.Module]:
    """Module name -> its syntax tree, of all product code."""
    return {name_of(file): ast.parse(file.read_text("utf-8")) for room in ROOMS for file in (ROOT / room).rglob("*.py")}


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def own(module: str | None) -> bool:
    return module is not None and module.split(".")[0] in ROOMS


def imported(node: ast.AST) -> list[str]:
    """Modules that an import statement may mean; of `from a import b`, both a and a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in tree.body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom))


@cache
def extras_of(module: str) -> frozenset[str]:
    """Optional packages that importing a module needs."""
    found: set[str] = set()
    seen, ahead = set(), {module}
    while ahead:
        name = ahead.pop()
        seen.add(name)
        for node in top_level(sources()[name]) if name in sources() else ():
            for other in imported(node):
                if own(other):
                    ahead |= {other} - seen
                elif other.split(".")[0] in EXTRAS:
                    found.add(other.split(".")[0])
    return frozenset(found)


def late_imports() -> list[str]:
    """Imports of own modules inside functions that no optional package excuses."""
    found = []
    for name, tree in sources().items():
        at_top = set(map(id, top_level(tree)))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom) or id(node) in at_top:
                continue
            for other in imported(node):
                if other in sources() and not extras_of(other) - extras_of(name):
                    found.append(f"{name}:{node.lineno} imports {other} inside a function")
                    break
    return found


def public(tree: ast.Module) -> Iterator[Definition]:
    for node in tree.body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node


def shared_names() -> list[str]:
    """Public functions and classes of one name in two files."""
    where = defaultdict(list)
    for name, tree in sources().items():
        for node in public(tree):
            where[node.name].append(name)
    return [f"{name}: {', '.join(places)}" for name, places in where.items() if len(places) > 1 and name not in ROLES]


def takes_docstring_of_its_file(node: Definition) -> bool:
    """The options of a command line are told what its file is told."""
    return any(isinstance(part, ast.Assign) and ast.unparse(part) == "__doc__ = __doc__" for part in node.body)


def untold() -> list[str]:
    """Public modules, functions, classes and methods without a docstring."""
    found = []
    for name, tree in sources().items():
        if not ast.get_docstring(tree):
            found.append(name)
        for node in public(tree):
            if not ast.get_docstring(node) and not takes_docstring_of_its_file(node):
                found.append(f"{name}.{node.name}")
            if isinstance(node, ast.ClassDef):
                methods = [part for part in node.body if isinstance(part, Definition) and not part.name.startswith("_")]
                found += [f"{name}.{node.name}.{part.name}" for part in methods if not ast.get_docstring(part)]
    return found


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def crowded_folders() -> list[str]:
    """Folders with too many files at their top."""
    count: dict[Path, int] = defaultdict(int)
    for file in tracked():
        count[file.parent.relative_to(ROOT)] += 1
    return [f"{folder}: {number} files" for folder, number in sorted(count.items()) if number > MOST_FILES]


def lines() -> int:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*") if file.suffix in (".py", ".js")]
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


def test_product_code_stays_small() -> None:
    assert lines() <= MOST_LINES


def test_no_folder_is_crowded() -> None:
    assert crowded_folders() == []


def test_modules_are_imported_at_the_top() -> None:
    assert late_imports() == []


def test_no_two_public_things_share_a_name() -> None:
    assert shared_names() == []


def test_every_public_name_has_a_docstring() -> None:
    assert untold() == []


if __name__ == "__main__":
    where = (sys.argv[1] if len(sys.argv) > 1 else "").strip("/").replace("/", ".")
    for title, rows in (
        ("crowded folders", crowded_folders()),
        ("late imports", late_imports()),
        ("shared names", shared_names()),
        ("no docstring", untold()),
    ):
        rows = [row for row in rows if where in row]
        print(f"{title}: {len(rows)}", *rows, sep="\n  ")
    print(f"lines: {lines()} of {MOST_LINES}")
