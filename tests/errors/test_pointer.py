"""Every error that `ddplab` raises at one of its doors ends with the pointer to `why`."""

import pytest

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
