"""What the table says of CUDA and NCCL is written where it says: in the installed torch.

`DDPLAB_CUDA_TORCH=/path/to/site-packages` names a build for CUDA; without it, what stands in CUDA's own libraries is
not looked for.
"""

import mmap
import os
import re
import sys
from pathlib import Path

import pytest
import rehearsal_page
import torch

sys.path.insert(0, str(Path(__file__).parent / "suite"))
import between_ranks  # noqa: F401
import on_devices  # noqa: F401
import table
import works  # noqa: F401

TORCH = Path(torch.__path__[0])
OTHER = os.environ.get("DDPLAB_CUDA_TORCH")


def library(name: str) -> Path | None:
    """Where a library lies; None if it comes with a build for CUDA only and there is none."""
    if OTHER:
        found = next(Path(OTHER).glob(f"nvidia/*/lib/{name}.so*"), Path(OTHER, "torch", "lib", f"{name}.so"))
    else:
        found = TORCH / "lib" / f"{name}.so"
    return found if found.exists() else None


def fragments(words: str, source: str) -> tuple[str, list[str]]:
    """The file or library that a row names, and what has to stand there: its source's third part, or its words."""
    named, _, rest = source.partition(": ")
    literal = rest if named.endswith(".py") else rest.partition(": ")[2]
    pieces = [part.strip() for part in (literal or words).split("…")]
    return named, [piece for piece in pieces if len(piece) > 11]


def missing(rows) -> list[str]:
    """The rows, by name, whose words do not stand where they say."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for row, (_, words, source) in rows.items():
        named, pieces = fragments(words, source)
        wanted.setdefault(named, []).extend((row, piece) for piece in pieces)
        methods = re.findall(r"wrapper_CUDA_\w+", words)
        wanted.setdefault("libtorch_cuda", []).extend((row, method) for method in methods)
    out = []
    for named, pieces in wanted.items():
        path = TORCH.parent / named if named.endswith(".py") else library(named)
        if path is None:
            continue
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            found = {piece: text.find(piece.encode()) >= 0 for piece in {piece for _, piece in pieces}}
        out += [f"{row}: {piece!r} is not in {named}" for row, piece in pieces if not found[piece]]
    return out


def test_the_words_stand_where_the_table_says():
    assert missing(table.MISTAKES) == []
    assert len([row for row in table.MISTAKES.values() if fragments(*row[1:])[1]]) >= 60


def test_what_works_names_a_file_of_torch_or_a_test_of_its_own():
    for row, (_, source) in table.WORKS.items():
        name = source.partition(": ")[0]
        assert name.startswith("test/") or (TORCH.parent / name).is_file(), f"{row}: {source}"


def test_the_page_of_what_is_covered_is_that_of_the_table():
    written = (rehearsal_page.ROOT / "REHEARSAL.md").read_text(encoding="utf-8")
    assert written == rehearsal_page.page(), "python tools/rehearsal_page.py writes it"


def test_words_that_stand_nowhere_are_noticed():
    invented = {"row": (None, "a message that nobody wrote", "torch/serialization.py")}
    assert missing(invented) == ["row: 'a message that nobody wrote' is not in torch/serialization.py"]
    if sys.platform == "linux":
        invented = {"row": (None, "a message that nobody wrote", "libc10: c10/core/Device.cpp")}
        assert "is not in libc10" in missing(invented)[0]


if OTHER is None:
    test_the_words_stand_where_the_table_says = pytest.mark.skipif(sys.platform != "linux", reason="reads .so files")(
        test_the_words_stand_where_the_table_says
    )
