"""Which checks of a chapter miss an altered formula: ``python tests/alterations.py chapters/02-uniform-vector.md``.

The chapter runs once, cell by cell.  Before each check, one arithmetic expression at a time is altered, in the check or
in a function of the chapter that it calls: a term is dropped, a sign flipped, a factor changed by 3 %, an exponent
raised, a root left out.  What changes nothing but a near miss does not count.  Alterations that a check lets pass are
listed; some are no fault, such as a drawn input that is 3 % longer, or a bound that says more than is needed.
"""

import ast
import copy
import io
import json
import os
import signal
import sys
import time
from contextlib import redirect_stdout, suppress
from pathlib import Path

import jupytext
from normgeom.checks import verdicts


def product(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div, ast.MatMult))


def alterations(node: ast.AST, parent: ast.AST | None):
    """What may go wrong at a node: a name for it, and the node altered."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield "term dropped", node.left
        other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield "sign flipped", ast.BinOp(node.left, other, node.right)
    if product(node) and not product(parent):
        yield "factor 1.03", ast.BinOp(ast.Constant(1.03), ast.Mult(), node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        yield "exponent + 1", ast.BinOp(node.left, ast.Pow(), ast.BinOp(node.right, ast.Add(), ast.Constant(1)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield "sign flipped", node.operand
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("sqrt", "square"):
        yield f"{node.func.attr} left out", node.args[0] if node.args else node.func.value


def sites(node: ast.AST, parent: ast.AST | None = None):
    """The nodes of a cell that may be altered, but for bounds and near misses of ng.verify."""
    yield node, parent
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("ng.verify", "claim", "erratum"):
        children = node.args[: 2 if ast.unparse(node.func) == "ng.verify" else 1]
    for child in children:
        yield from sites(child, node)


def mutants(tree: ast.Module):
    """Each alteration of a cell, in words and as code; shapes that no longer compile are left out."""
    for node, parent in list(sites(tree)):
        for what, new in alterations(node, parent):
            altered = ast.fix_missing_locations(copy.deepcopy(tree, {id(node): new}))
            yield f"{what}: {ast.unparse(node)}", compile(altered, "<altered>", "exec")


def definitions(tree: ast.Module) -> dict[str, ast.Module]:
    """The functions and lambdas that a cell defines at its outermost level."""
    found = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            found[statement.name] = ast.Module([statement], [])
        elif isinstance(statement, ast.Assign) and any(isinstance(n, ast.Lambda) for n in ast.walk(statement.value)):
            found[ast.unparse(statement.targets[0])] = ast.Module([statement], [])
    return found


def used(tree: ast.Module, known: dict[str, ast.Module]) -> dict[str, ast.Module]:
    """Which of the chapter's functions a cell calls, directly or through each other."""
    names, queue = {}, [tree]
    while queue:
        for node in ast.walk(queue.pop()):
            if isinstance(node, ast.Name) and node.id in known and node.id not in names:
                names[node.id] = known[node.id]
                queue.append(known[node.id])
    return names


def judged(codes: list, space: dict, limit: float) -> tuple[list, list] | None:
    """The deviations and near misses that code hands to verify, run in a copy of this process; None where it fails."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.setitimer(signal.ITIMER_REAL, limit)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        verdicts.clear()
        with suppress(BaseException):
            for code in codes:
                exec(code, space)
            os.write(
                write,
                json.dumps([[holds for _, holds, _, _ in verdicts], [breaks for _, _, breaks, _ in verdicts]]).encode(),
            )
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return json.loads(found) if found else None


def missed(cell: ast.Module, known: dict[str, ast.Module], space: dict) -> tuple[int, list[str]]:
    """How many alterations of a check change what it compares, and those that it lets pass."""
    whole, start = compile(cell, "<check>", "exec"), time.monotonic()
    right = judged([whole], space, 600)
    limit = 5 * (time.monotonic() - start) + 2
    tries = [(line, [altered]) for line, altered in mutants(cell)]
    for name, source in used(cell, known).items():
        tries += [(f"{name}: {line}", [altered, whole]) for line, altered in mutants(source)]
    found = [(line, judged(codes, space, limit)) for line, codes in tries]
    # A bound that is kept has no deviation: there nothing tells a near miss from a looser bound.
    counted = [(line, now) for line, now in found if now is None or now[0] != right[0] or 0 in now[0] or now == right]
    return len(counted), [line for line, now in counted if now is not None]


def main(path: Path) -> None:
    space, known, tried, caught = {"__name__": "__main__"}, {}, 0, 0
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "code":
            tree, check = ast.parse(cell.source), "check" in cell.metadata.get("tags", [])
            if check:
                count, passed = missed(tree, known, space)
                tried, caught = tried + count, caught + count - len(passed)
                print(f"{', '.join(cell.metadata['verifies'])}: {count - len(passed)} of {count}")
                print(*(f"    {line}" for line in passed), sep="\n", flush=True)
            with redirect_stdout(io.StringIO()):
                exec(compile(tree, "<cell>", "exec"), space)
            if not check:
                known |= definitions(tree)
    print(f"{path.stem}: {caught} of {tried} alterations caught")


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    for argument in sys.argv[1:]:
        main(Path(argument))
