"""What some lessons of part 3 say below a slider, run once: the page launches only what its reader asks for."""

import ast
import re
from pathlib import Path

import nbformat
import torch
from test_lessons_of_ddp import functions

from ddplab.launcher import launch

PART = Path(__file__).parents[2] / "lessons" / "3_processes"
BY_HAND, ORIGINS = "3.3_all_reduce_and_ddp_by_hand.ipynb", "3.4_where_processes_come_from.ipynb"


def test_a_ddp_by_hand_trains_as_torchs_and_averaging_again_changes_the_rounding_at_most():
    space = functions(f"../3_processes/{BY_HAND}")
    alike, own, torchs = space["digits_alike"], space["HandmadeDDP"], torch.nn.parallel.DistributedDataParallel

    def weights(wrap, ranks, again=False):
        return launch(space["train"], wrap, again, nproc_per_node=ranks, quiet=True).results

    def same(ranks):
        return all(torch.equal(ranks[0], it) for it in ranks)

    alone, apart = weights(lambda net: net, 1)[0], weights(lambda net: net, 2)
    assert alike(alone, apart[0]) == 1 and not same(apart)
    for size, as_alone in ((2, 12), (3, 2), (4, 12)):
        once, again = weights(own, size), weights(own, size, again=True)
        assert same(once) and same(again)
        assert [alike(it, once[0]) for it in (alone, weights(torchs, size)[0])] == [as_alone, 12]
        assert torch.equal(once[0], again[0]) == (size != 3) and alike(once[0], again[0]) == 12


def test_a_fork_hangs_only_while_a_thread_holds_the_lock_and_a_child_of_another_way_never():
    space = {}
    for cell in nbformat.read(PART / ORIGINS, as_version=4).cells:
        if re.search(r"^(import os|locked = |def lock_of)", cell.source, re.MULTILINE):
            tree = ast.parse(cell.source)
            kept = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Assign
            tree.body = [it for it in tree.body if isinstance(it, kept) and "predict(" not in ast.unparse(it)]
            exec(compile(tree, ORIGINS, "exec"), space)
    for way, moment in (("spawn", "holds the lock"), ("forkserver", "holds the lock"), ("fork", "has let go")):
        space["lock_of"](way, moment)
    assert len(space["asked"]) == 3 and {*space["asked"].values()} == {("True", "1")}
