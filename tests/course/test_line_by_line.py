"""Files whose processes are traced: real scripts, which lines each process ran, and the picture read back."""

import matplotlib
import pytest

from ddplab.course import line_by_line
from ddplab.course.line_by_line import by_process, traced

matplotlib.use("Agg")

SCRIPT = """
import sys
from multiprocessing import get_context
note = "old"

def child():
    print(note)

if __name__ == "__main__":
    note = "new"
    get_context(sys.argv[1]).Process(target=child).start()
"""
ALL_BUT_THE_BODY = {2, 3, 4, 6, 9, 10, 11}


def test_a_forked_child_runs_its_function_alone_and_a_spawned_one_reads_the_file_up_to_the_guard():
    fork, spawn = traced(SCRIPT, "fork"), traced(SCRIPT, "spawn")
    assert fork.lines == [("parent", ALL_BUT_THE_BODY), ("child", {7})]
    assert spawn.lines == [("parent", ALL_BUT_THE_BODY), ("child", {2, 3, 4, 6, 7, 9})]
    assert (fork.printed, fork.readers, spawn.printed, spawn.readers) == ("new", 1, "old", 2)
    assert fork.error == spawn.error == ""


def test_under_forkserver_whoever_has_read_the_file_somebody_has_besides_the_parent():
    run = traced(SCRIPT, "forkserver")
    assert run.lines[0] == ("parent", ALL_BUT_THE_BODY) and {name for name, _ in run.lines[1:]} <= {"helper", "child"}
    assert any(7 in lines for name, lines in run.lines if name == "child")
    assert (run.printed, run.readers) == ("old", 2)


def test_without_a_guard_the_child_reads_up_to_the_order_and_the_error_is_named():
    script = SCRIPT.replace('if __name__ == "__main__":', "if True:")
    run = traced(script, "spawn")
    assert run.error == "RuntimeError" and "bootstrapping phase" in run.said and run.printed == ""
    assert dict(run.lines)["child"] == ALL_BUT_THE_BODY


def test_where_not_a_line_is_run_it_is_told_why():
    with pytest.raises(RuntimeError, match="ran no line, and ended with 1:") as raised:
        traced("no Python")
    assert "SyntaxError" in str(raised.value)


def test_what_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(line_by_line, "SECONDS", 1)
    with pytest.raises(RuntimeError, match="did not end within 1 seconds"):
        traced("while True: pass")


def test_the_picture_has_the_file_and_a_box_for_each_line_that_a_process_ran():
    run, broken = traced(SCRIPT, "fork"), traced(SCRIPT, "nothing")
    (axis,) = by_process(SCRIPT, {"fork": run, "nothing": broken}).axes
    texts = [text.get_text() for text in axis.texts]
    assert texts[:9] == SCRIPT.strip().splitlines()[:9] and texts[10:] == [
        *("fork", "parent", "child", "prints: new"),
        *("nothing", "parent", "ValueError"),
    ]
    rows = sorted((patch.get_x(), round(patch.get_y() - 0.1)) for patch in axis.patches)
    child = [row for left, row in rows if left == pytest.approx(1.6)]
    assert len(axis.patches) == 8 + 7 and child == [5]
