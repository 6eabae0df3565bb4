"""Where the installed torch raises what: found in its files and libraries, without importing it.

Python's messages are read off the `raise` statements, file and line; those of C++ stand as strings in the libraries.
"""

from __future__ import annotations

import ast
import mmap
import re
import struct
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOMS = ("distributed", "nn/parallel", "multiprocessing", "utils/data", "serialization.py", "cuda/__init__.py")
# They hold what c10d, the autograd engine and the devices can say; a CUDA build has more of them.
LIBRARIES = ("libtorch_cpu", "libtorch_python", "libtorch_cuda", "libc10", "libc10_cuda", "libnccl")
SHORTEST = 16  # letters of a template that make it worth a guess
# Python's own words, which torch has in templates too: whoever says them, it is hardly torch
PYTHONS = re.compile(
    r"object has no attribute|positional argument|unexpected keyword argument|is not (?:subscript|call)able"
)


class Raise(NamedTuple):
    """One `raise`: file (below site-packages), line, function, the exception's name, the message's fixed words."""

    file: str
    line: int
    function: str
    type: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}" + (f", in {self.function}" if self.function else "")


@cache
def folder_of(package: str = "torch") -> Path | None:
    """Return the folder of an installed package, which is not imported; None where there is none."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def version() -> str:
    """Return the installed torch's version, "" where there is none."""
    torch = folder_of()
    file = torch and torch / "version.py"
    found = re.search(r"__version__ = '([^']+)'", file.read_text()) if file and file.exists() else None
    return found[1] if found else ""


def raised_at(source: str, string: str) -> str:
    """Return where the installed torch says `string`: the line of a Python file; a C++ file's name stays as it is.

    source: the file's name, in torch's repository. Where the installed torch has no such words: the name as it is.
    """
    torch = folder_of()
    if source.endswith(".py") and torch and (file := torch.parent / source.partition(":")[0]).exists():
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if string in line:
                return f"{source.partition(':')[0]}, line {number} (torch {version()})"
    return source


def raises(path: Path, root: Path) -> Iterator[Raise]:
    """Yield every `raise` of a Python file that has words of its own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside: list[tuple[ast.AST, str]] = [(tree, "")]
    while inside:
        node, function = inside.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            words = tuple(part for arg in node.exc.args for part in _literals(arg) if len(part.strip()) > 2)
            if words:
                name = ast.unparse(node.exc.func)
                yield Raise(str(path.relative_to(root)), node.lineno, function, name, words)
        inside += [(child, function) for child in ast.iter_child_nodes(node)]


def _literals(node: ast.AST) -> list[str]:
    """The fixed pieces of a message, in order: of a string, an f-string, a sum, `%` or `.format`."""
    if isinstance(node, ast.Constant):
        return re.split(r"%[-\d.]*[sdrf]|\{[^{}]*\}", node.value) if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return [v.value for v in node.values if isinstance(v, ast.Constant)]
    if isinstance(node, ast.BinOp):
        return _literals(node.left) + (_literals(node.right) if isinstance(node.op, ast.Add) else [])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "join"):
        return _literals(node.func.value)
    return []


def files(package: str) -> list[Path]:
    """Return the Python files that may raise what people meet: torch's rooms for many ranks, or all of ours."""
    folder = folder_of(package)
    if folder is None:
        return []
    rooms = [folder / room for room in ROOMS] if package == "torch" else [folder]
    if package == "ddplab":  # virtual GPUs and rehearsals speak torch's words and NCCL's
        rooms = [it for it in sorted(folder.iterdir()) if it.name not in ("rehearse", "vgpu")]
    return [path for room in rooms for path in ([room] if room.suffix else sorted(room.rglob("*.py"))) if path.exists()]


def look_up(message: str) -> Raise | None:
    """Return the `raise` of torch or of ddplab whose fixed words the message has; None where none fits."""
    words = [] if PYTHONS.search(message) else re.findall(r"[A-Za-z_]{2,}", message)
    shingles = [re.compile(r"\W+(?:f\W+)?".join(map(re.escape, words[i : i + 3]))) for i in range(len(words) - 2)][:40]
    if not shingles:
        return None
    scored = []
    for package in ("ddplab", "torch"):
        for path in files(package):
            text = path.read_text(encoding="utf-8", errors="replace")
            # the rarest words first: most files are left at once
            if (longest := max(words, key=len)) in text or sum(word in text for word in words) > len(words) * 0.7:
                hits = sum(shingle.search(text) is not None for shingle in shingles) + (longest in text) / 2
                scored.append((hits, path, folder_of(package).parent))
    best: tuple[float, Raise | None] = (0, None)
    for hits, path, root in sorted(scored, key=lambda row: -row[0])[:3]:
        if hits < 1:
            continue
        for it in raises(path, root):
            first_line = "\0".join(it.words).strip().partition("\n")[0].split("\0")  # all that the message may have
            parts = [" ".join(part.split()) for part in first_line]
            whole = sum(map(len, parts))
            found = sum(len(part) for part in parts if part in message)
            if found >= max(SHORTEST, whole * 0.6) and found > best[0]:
                best = found, it
    return best[1]


def look_up_library(message: str) -> tuple[str, str] | None:
    """Return the library and the string in it that the message holds: a message of C++. None where none does."""
    words = message.split()
    windows = [" ".join(words[i : i + 4]) for i in range(len(words) - 3)]
    windows = [w for w in windows if re.fullmatch(r"[A-Za-z_,.':() -]{14,}", w)][:6]
    for path, blob, begin, end in _libraries() if windows else ():
        for window in windows:
            at = blob.find(window.encode(), begin, end)
            if at < 0:
                continue
            start, stop = blob.rfind(b"\0", begin, at) + 1, blob.find(b"\0", at, end)
            string = blob[start:stop].decode("utf-8", "replace")
            if len(string) >= 2 * SHORTEST and " ".join(string.split()) in message:
                return path.name, " ".join(string.split())
    return None


def in_a_library(string: str) -> str:
    """Return the name of the library that holds the string, "" where none does."""
    wanted = string.encode()
    return next((path.name for path, blob, begin, end in _libraries() if blob.find(wanted, begin, end) >= 0), "")


def _libraries() -> Iterator[tuple[Path, mmap.mmap, int, int]]:
    torch = folder_of()
    if torch is None:
        return
    nvidia = torch.parent / "nvidia" / "nccl" / "lib"
    for path in [*(torch / "lib").glob("*"), *nvidia.glob("*")]:
        if path.is_file() and path.name.split(".")[0] in LIBRARIES:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as blob:
                yield path, blob, *_constants(blob)


def _constants(blob: mmap.mmap) -> tuple[int, int]:
    """Where an ELF file keeps its strings (.rodata); of any other file, all of it."""
    if blob[:5] != b"\x7fELF\x02":
        return 0, len(blob)
    table, size, count, names = *struct.unpack_from("<Q", blob, 0x28), *struct.unpack_from("<HHH", blob, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", blob, table + i * size) for i in range(count)]
    strings = headers[names][4]
    for name, _, _, _, offset, length in headers:
        if blob[strings + name : strings + name + 8] == b".rodata\0":
            return offset, offset + length
    return 0, len(blob)
