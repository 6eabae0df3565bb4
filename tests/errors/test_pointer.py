"""Every error that `ddplab` raises at one of its doors ends with the pointer to `why`."""

import ast
import inspect
from pathlib import Path

import pytest

import ddplab
from ddplab.course.cards import dealer
from ddplab.course.checklist import dataparallel_checklist
from ddplab.course.incidents import incident
from ddplab.course.plan import fit_link
from ddplab.course.plan_explorer import planner
from ddplab.course.step_explorer import explore_step
from ddplab.course.switches import four_switches
from ddplab.pointer import POINTER
from ddplab.vgpu import GPUs


def test_a_wrong_argument_is_answered_with_the_pointer():
    wrong = [
        lambda: GPUs(0),
        lambda: GPUs(1).meter,
        lambda: dealer(ranks="seven"),
        lambda: dataparallel_checklist("model"),
        lambda: incident(0),
        lambda: fit_link([]),
        lambda: planner(gpu="none"),
        lambda: explore_step(ranks=1000),
        lambda: four_switches((0, 0.1)),
    ]
    for door in wrong:
        with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
            door()
        assert caught.value.__notes__ == [POINTER]


def test_every_function_of_the_course_that_raises_gives_the_pointer():
    without = []
    for path in sorted(Path(inspect.getfile(ddplab)).parent.glob("course/*.py")):
        tree = ast.parse(path.read_text())
        public = [node for node in tree.body if not getattr(node, "name", "_").startswith("_")]
        methods = [node for it in public if isinstance(it, ast.ClassDef) for node in it.body]
        for node in public + methods:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                raises = any(isinstance(part, ast.Raise) and part.exc for part in ast.walk(node))
                if raises and "pointing" not in map(ast.unparse, node.decorator_list):
                    without.append(f"{path.name}: {node.name}")
    assert without == []
