"""The map of the package, in CONTRIBUTING.md and the README, is what the imports say: no cycle, no arrow up."""

import ast
import itertools
import re
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ddplab"
FOLDERS = {"checks", "course", "grading", "rehearse", "vgpu"}
SLOW = ("matplotlib", "ipywidgets", "IPython", "torch.distributed.run", "torch.distributed.elastic")

Arrows = set[tuple[str, str]]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def part_of(path: Path) -> str:
    """The name on the map of a file's part: its module, or its folder."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py").strip("_")


PARTS = {part_of(path) for path in PACKAGE.rglob("*.py")}


def imports_of(path: Path, code: ast.Module | None = None) -> set[str]:
    found, package = set(), ("ddplab", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(code or parsed(path)):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()  # `from .name` and `from ..name`
            module = ".".join([*above, *filter(None, [node.module])])
            if module == "ddplab":
                found |= {alias.name if alias.name in PARTS else "init" for alias in node.names}
            elif module.startswith("ddplab."):
                found.add(module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {
                a.name.partition(".")[2].split(".")[0] or "init" for a in node.names if a.name.startswith("ddplab")
            }
    return found - {part_of(path)}


@cache
def imported() -> Arrows:
    return {(part_of(path), other) for path in PACKAGE.rglob("*.py") for other in imports_of(path)}


def drawn(document: str) -> tuple[Arrows, dict[str, set[str]]]:
    """The arrows of a document's picture, and its rooms, each with what stands in it."""
    text = re.search(r"```mermaid\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)[1]
    arrows = set(re.findall(r"(\w+) --> (\w+)", text))
    rooms: dict[str, set[str]] = {}
    for name, body in re.findall(r"subgraph (\w+) .*?\n(.*?)\n    end", text, re.DOTALL):
        rooms[name] = set(re.findall(r"^ +(\w+)", body, re.MULTILINE))
    for name, label in re.findall(r'^    (\w+)\["(?:[^"]*: )?([^"]*)"\]', text, re.MULTILINE):
        rooms[name] = {word.strip("_/ ") for word in label.split(",")}
    return arrows, rooms


def reachable(arrows: Arrows, start: str) -> set[str]:
    found, todo = set(), [start]
    while todo:
        for _, other in [arrow for arrow in arrows if arrow[0] == todo[0]]:
            if other not in found:
                found.add(other)
                todo.append(other)
        todo.pop(0)
    return found


def without_shortcuts(arrows: Arrows) -> Arrows:
    """The arrows that no longer way says already."""
    return {arrow for arrow in arrows if arrow[1] not in reachable(arrows - {arrow}, arrow[0])}


def ordered(arrows: Arrows) -> list[str]:
    """All parts, what is imported first. Raises CycleError."""
    graph: dict[str, set[str]] = {}
    for user, used in arrows:
        graph.setdefault(user, set()).add(used)
    return list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("how", ["ddplab.panel import Panel", "..panel import Panel", ".. import panel"])
def test_an_import_is_seen_however_it_is_written(how):
    code = ast.parse(f"from {how}\nfrom .tensor import state\nfrom . import comm")
    assert imports_of(PACKAGE / "vgpu" / "meter.py", code) == {"panel"}
    assert imports_of(PACKAGE / "run.py", ast.parse("from .panel import Panel")) == {"panel"}


def test_no_import_goes_round_in_a_circle():
    assert set(ordered(imported())) == PARTS


def test_the_picture_of_the_modules_is_what_the_imports_say():
    arrows, rooms = drawn("CONTRIBUTING.md")
    assert arrows == without_shortcuts(imported())
    inside = Counter(itertools.chain.from_iterable(rooms.values()))
    assert set(inside) == PARTS and max(inside.values()) == 1, "each part stands in one room"


def test_the_picture_of_the_rooms_is_what_the_imports_say():
    arrows, rooms = drawn("README.md")
    room_of = {part: room for room, parts in rooms.items() for part in parts}
    assert set(room_of) == PARTS
    between = {(room_of[a], room_of[b]) for a, b in imported()}
    between = {(a, b) for a, b in between if a != b}
    ordered(between)
    assert arrows == without_shortcuts(between)
    assert rooms == drawn("CONTRIBUTING.md")[1], "both pictures have the same rooms"


def test_an_arrow_that_is_turned_round_is_noticed():
    for user, used in without_shortcuts(imported()):
        turned = imported() - {(user, used)} | {(used, user)}
        try:
            ordered(turned)
        except CycleError:
            continue
        assert without_shortcuts(turned) != drawn("CONTRIBUTING.md")[0]


def test_the_core_does_not_know_what_only_lessons_need():
    core = PARTS - FOLDERS - {"init", "main"}
    outside = {"checks", "course", "grading", "init", "main"}
    assert not [arrow for arrow in imported() if arrow[0] in core and arrow[1] in outside]


@pytest.mark.parametrize("part", ["worker", "folder", "hardware", "processes", "script", "rehearse", "vgpu"])
def test_what_runs_in_a_rank_knows_no_screen(part):
    assert not reachable(imported(), part) & {"panel", "plots", "screen", "follow", "run", "launcher"}


def public_names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in parsed(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_no_module_is_named_as_a_function_that_it_holds():
    def functions(path: Path) -> set[str]:
        return {node.name for node in parsed(path).body if isinstance(node, ast.FunctionDef)}

    assert [path.name for path in PACKAGE.rglob("*.py") if path.stem in functions(path)] == []


def test_a_public_name_of_the_core_has_one_meaning():
    places = Counter(name for path in PACKAGE.glob("*.py") for name in public_names(path))
    assert [name for name, count in places.items() if count > 1 and name != "main"] == []


def test_imports_inside_functions_are_of_what_is_slow():
    late = set()
    for path in PACKAGE.glob("*.py"):
        for function in ast.walk(parsed(path)):
            for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
                if isinstance(node, ast.Import):
                    late |= {(path.name, alias.name) for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    late.add((path.name, node.module))
    assert {(module, name) for module, name in late if not name.startswith(SLOW)} == set()
