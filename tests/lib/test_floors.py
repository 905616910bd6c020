"""The library's rooms stand on floors, and imports run down: a room may use what lies below it and nothing else.

Above all of them is the chapters' package: its modules import the library and ``normgeom_lab.common``, not each other.
"""

import ast
import tomllib
from pathlib import Path

import normgeom as ng
import pytest

FLOORS = (
    {"norms", "text", "jobs", "records", "checks"},
    {"geometry", "models"},
    {"survey", "surgery", "view"},
    {"commands"},
    {"cli"},
    {"__main__"},
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
LIBRARY = Path(ng.__file__).parent
LAB = LIBRARY.with_name("normgeom_lab")
FILES = {
    ".".join(path.relative_to(LIBRARY).with_suffix("").parts): path
    for path in sorted(LIBRARY.rglob("*.py"))
    if path != LIBRARY / "__init__.py"
}


def imported(path):
    """The library's modules that a file imports, wherever in it, without ``normgeom``."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "normgeom":
            inside = node.module.removeprefix("normgeom").removeprefix(".")
            for alias in node.names:
                name = f"{inside}.{alias.name}".removeprefix(".")
                yield name if name in FILES or f"{name}.__init__" in FILES else inside
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (name.removeprefix("normgeom.") for name in names if name.startswith("normgeom."))


@pytest.mark.parametrize("name", FILES)
def test_imports_run_down(name):
    room = name.partition(".")[0]
    for other in imported(FILES[name]):
        assert other, f"{name} imports the package itself: a circle"
        below = other.partition(".")[0]
        assert below == room or FLOOR[below] < FLOOR[room], f"{name} imports {other}, which is not below it"


def test_no_circle_in_a_room():
    ends = {name: {other for other in imported(path) if other in FILES} for name, path in FILES.items()}
    while leaves := [name for name, others in ends.items() if not others & ends.keys()]:
        for name in leaves:
            del ends[name]
    assert not ends, f"these import each other: {sorted(ends)}"


def test_rooms_keep_within_their_lines():
    root = LIBRARY.parents[1]
    for room, limit in tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["normgeom"]["lines"].items():
        files = [path for path in (root / room).rglob("*") if path.suffix in (".py", ".js")]
        lines = sum(len(path.read_text("utf-8").splitlines()) for path in files)
        assert 0.9 * limit < lines <= limit, f"{room} has {lines} lines, meant are at most {limit}, and not far fewer"


@pytest.mark.parametrize("path", sorted(LIBRARY.rglob("*.py")), ids=lambda path: path.stem)
def test_the_library_never_imports_the_package_of_the_chapters(path):
    assert "normgeom_lab" not in path.read_text("utf-8")


@pytest.mark.parametrize("path", sorted(LAB.rglob("*.py")), ids=lambda path: str(path.relative_to(LAB)))
def test_a_chapters_module_imports_no_other(path):
    own = path.relative_to(LAB).with_suffix("").parts[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("normgeom_lab"):
            assert node.module.split(".")[1] in ("common", own), f"{path.name} imports {node.module}"
