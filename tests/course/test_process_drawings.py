"""Pictures of processes, read back: bars from coming to leaving."""

import matplotlib
import pytest

from ddplab.course.process_drawings import arrivals

matplotlib.use("Agg")


def test_arrivals_draws_a_bar_a_rank_from_its_coming_to_its_leaving_and_marks_the_last_coming():
    (axis,) = arrivals([(10.0, 11.5), (11.0, 11.5)]).axes
    first, second = axis.patches
    assert (first.get_x(), first.get_width()) == (0, 1.5) and (second.get_x(), second.get_width()) == (1, 0.5)
    assert first.get_hatch() and [tick.get_text() for tick in axis.get_yticklabels()] == ["rank 0", "rank 1"]
    assert axis.lines[0].get_xdata()[0] == pytest.approx(1) and axis.lines[0].get_linestyle() == "--"
    assert axis.yaxis_inverted()  # rank 0 on top, as in the other pictures
