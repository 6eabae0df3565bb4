"""Promise 10, and what is read of the run folder: each rank's output, and that the folder goes."""

import os
import sys

import pytest
import torch.distributed as dist
from leftovers import run_folders

from ddplab import launch


def test_output_is_kept_apart_python_and_c_alike(capfd):
    def talk():
        print("python", dist.get_rank())
        os.write(1, f"descriptor {dist.get_rank()}\n".encode())
        print("error", file=sys.stderr)
        print("no newline", end="")

    run = launch(talk, quiet=True)
    for rank in (0, 1):
        assert sorted(run.output[rank].splitlines()) == sorted(
            [f"python {rank}", f"descriptor {rank}", "error", "no newline"]
        )
    assert capfd.readouterr().out == ""


def test_a_hundred_megabytes_neither_block_nor_flood():
    def shout():
        line = "x" * 999 + "\n"
        for _ in range(100):
            sys.stdout.write(line * 1000)
        print("the end")
        return "done"

    run = launch(shout, nproc_per_node=1, quiet=True)
    assert run.results == ["done"]
    text = run.output[0]
    assert len(text) < 1_100_000 and text.endswith("the end\n")
    assert text.startswith("[99000008 bytes of earlier output were not kept]")


def test_a_progress_bar_reads_as_a_terminal_shows_it():
    def bar():
        for i in range(5):
            print(f"\r{i} of 5", end="")
        print("\nafter")

    assert launch(bar, nproc_per_node=1, quiet=True).output[0] == "4 of 5\nafter\n"


def test_a_run_folder_goes_when_the_door_is_shut():
    before = run_folders()
    with pytest.raises(TypeError):
        launch(print, (i for i in range(3)))
    assert run_folders() == before
