"""Identify pieces of Python by their syntax, without comments and docstrings."""

import ast
import hashlib

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def digest(parts: object) -> str:
    """Return eight hexadecimal digits that identify syntax trees, alone or in lists, in every version of Python."""
    return hashlib.sha256(repr(_plain(parts)).encode()).hexdigest()[:8]


def _plain(node: object) -> object:
    if isinstance(node, list):
        return [_plain(part) for part in node]
    if not isinstance(node, ast.AST):
        return node
    fields = dict(ast.iter_fields(node))
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = fields["body"][1:]
    # fields that a later version of Python adds are empty in older code
    return type(node).__name__, [(name, _plain(value)) for name, value in fields.items() if value not in (None, [])]
