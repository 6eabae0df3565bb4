"""A rank that does not come in time: what the other is told, and the four causes, ticked."""

import matplotlib

from ddplab.course.patience import CAUSES, played, told

matplotlib.use("Agg")


def test_a_slow_rank_is_waited_for_where_the_limit_is_long_enough_and_played_once():
    says, drawn = told(CAUSES[0], 3)
    assert says == "goes on" and drawn.axes[0].get_title(loc="left") == "rank 1 reads a slow disk"
    assert told(CAUSES[0], 3)[1] is drawn


def test_a_dead_rank_is_told_of_at_once_and_ticked():
    words, _ = played("has died", 3)
    assert "✓ has died, in 3 s: Connection closed by peer" in words and words.count("\n") == 3
