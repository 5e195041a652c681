"""Where the gateway hands work to a thread or a process, read from its source."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE: Final = Path(gateway.__file__).parent
_HANDS_OVER: Final = frozenset(
    {"to_thread", "run_in_executor", "create_subprocess_exec", "create_subprocess_shell",
     "ThreadPoolExecutor", "ProcessPoolExecutor", "run_sync", "run_in_threadpool", "Popen"}
)  # fmt: skip
_NOT_SERVING: Final = ("cli", "devdb", "simulator")
"""Packages that no server runs."""


def executor_calls() -> set[str]:
    """Each as `folder/module.py:function`."""
    return {
        f"{path.relative_to(SOURCE)}:{function}"
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] not in _NOT_SERVING
        for function in _callers(ast.parse(path.read_text("utf-8")), "module")
    }


def functions_of(module: str) -> set[str]:
    """The names of all functions of a module, `module` for what is in none."""
    tree = ast.parse((SOURCE / module).read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {"module", *(node.name for node in ast.walk(tree) if isinstance(node, functions))}


def _callers(node: ast.AST, function: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _callers(child, child.name)
            continue
        if isinstance(child, ast.Call) and _name(child.func) in _HANDS_OVER:
            yield function
        yield from _callers(child, function)


def _name(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""
