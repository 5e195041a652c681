"""The gateway without traces: `python -m tests.load.untraced` is `python -m gateway`, whose modules
are compiled without the places that look for a span. What these cost is what `off` costs.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType

PACKAGE: Final = "gateway"
_CALLS: Final = frozenset({"recorded()", "CURRENT.get()"})
_TRACERS: Final = frozenset({"tracing", "_tracing"})
_SPANS: Final = frozenset({"self.span", "record.span"})
_MARK: Final = b"gateway.telemetry.trac"
"""Nothing else has spans of this kind."""
_NONE: Final = ast.dump(ast.Constant(None))


class Removal(ast.NodeTransformer):
    """Puts None for each span and each tracer that is read, and decides comparisons of None.

    The compiler leaves out what can then never run.
    """

    @override
    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not node.args and ast.unparse(node) in _CALLS:
            return ast.copy_location(ast.Constant(None), node)
        return self.generic_visit(node)

    @override
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        is_read = isinstance(node.ctx, ast.Load)
        if is_read and (node.attr in _TRACERS or ast.unparse(node) in _SPANS):
            return ast.copy_location(ast.Constant(None), node)
        return self.generic_visit(node)

    @override
    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        left = node.left.value if isinstance(node.left, ast.NamedExpr) else node.left
        if {ast.dump(left), *map(ast.dump, node.comparators)} != {_NONE}:
            return node
        return ast.copy_location(ast.Constant(isinstance(node.ops[0], ast.Is)), node)


def untraced(source: str) -> ast.Module:
    """The module without the places that look for a span."""
    tree: ast.Module = Removal().visit(ast.parse(source))
    return tree


class Loader(SourceFileLoader):
    """Loads from the source, never from what was compiled before."""

    @override
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        tree = untraced(source.decode()) if _MARK in source else ast.parse(source)
        code: CodeType = compile(tree, path, "exec")
        return code


class Finder(PathFinder):
    """Finds the package's modules, for `Loader`."""

    @classmethod
    @override
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(fullname, spec.loader.path)
        return spec


if __name__ == "__main__":
    sys.meta_path.insert(0, Finder)
    from gateway.__main__ import main

    main()
