"""REHEARSAL.md: what a rehearsal is held to, from the table that tests hold it to (tests/rehearse/suite)."""

import sys
from pathlib import Path

from run_notebooks import ROOT

from ddplab.rehearse import KINDS
from ddplab.rehearse.report import NOT_REHEARSED

HEAD = """# What a rehearsal covers

`python -m ddplab rehearse` runs an unmodified CUDA script on virtual GPUs: CPU memory, and no GPU runs any of it. This
page is the table that tests hold it to. Each mistake is made for real by two ranks, and has to raise these words, which
are those of CUDA or NCCL: a test looks them up in the installed torch where its build has them. "…" stands for a
device, a size or a number. What works has to give the values that it gives on GPUs.

**{not_rehearsed}.** What is in neither list may still work: its kernels run on the CPU, and each is asked where its
tensors are. FSDP2 is covered as far as the second list goes (its shards are trained, looked at, saved, and filled where
they were made on meta), and none of its mistakes is in the first. Tensor parallelism is refused, in words that say so.
`torch.compile` compiles nothing, so its kernels are not rehearsed. One thing differs in silence: a tensor on a virtual
GPU is a `torch.Tensor` for `isinstance`, and of another `type()`.

`--gpu-type` knows {kinds}: the compute capability, and the memory of the data sheet.
"""


def page() -> str:
    """The text of the page. Imports the suite, and so torch; tests/rehearse/test_sources.py sees that it is in step."""
    sys.path.insert(0, str(ROOT / "tests/rehearse/suite"))
    import between_ranks  # noqa: F401
    import on_devices  # noqa: F401
    import table
    import works  # noqa: F401

    def called(name: str) -> str:
        return name.replace("_", " ")

    def words(text: str) -> str:
        return text.splitlines()[0].replace("|", "\\|")

    def source(text: str) -> str:
        return ": ".join(text.split(": ")[: 1 if text.startswith("torch/") else 2])

    kinds = ", ".join(f"{name} ({kind.gib} GiB)" for name, kind in KINDS.items())
    sentence = NOT_REHEARSED[0].upper() + NOT_REHEARSED[1:]
    mistakes = [
        f"| {called(name)} | {words(said)} | {source(where)} |" for name, (_, said, where) in table.MISTAKES.items()
    ]
    working = [f"| {called(name)} | {where} |" for name, (_, where) in table.WORKS.items()]
    return "\n".join(
        [
            HEAD.format(not_rehearsed=sentence, kinds=kinds),
            f"## {len(mistakes)} mistakes that are named\n",
            "| a script with | gets | which is written in |\n|---|---|---|",
            *mistakes,
            f"\n## {len(working)} things that work\n",
            "| what | where its behaviour is written |\n|---|---|",
            *working,
            "",
        ]
    )


if __name__ == "__main__":  # python tools/rehearsal_page.py
    Path(ROOT, "REHEARSAL.md").write_text(page(), encoding="utf-8")
