"""The hang theatre: real ranks play, one goes astray, and the film and the words are what became of it."""

import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from ddplab.course.stage import VERDICTS, Act, Film, _told, draw, record, theatre, torchrun_alone


def scene():
    x = torch.ones(1)
    dist.broadcast(x, src=0)
    for _ in range(2):
        time.sleep(0.05)
        dist.all_reduce(x)


@pytest.fixture(autouse=True)
def by_value():
    cloudpickle.register_pickle_by_value(__import__(__name__))


def told(film, rank):
    return [row["doing"] for row in film.rows if row["rank"] == rank]


WHOLE = ["computes", "broadcast", "computes", "all_reduce", "computes", "all_reduce", "computes", "returned"]


def test_a_scene_as_it_is_written_and_one_with_a_late_rank():
    film = record(scene, Act(0, "does nothing else", 0), ranks=2)
    assert told(film, 0) == told(film, 1) == WHOLE and film.words.endswith("finished")
    film = record(scene, Act(1, "is late for", 2), ranks=2)
    assert told(film, 0) == WHOLE and told(film, 1) == [*WHOLE[:3], "is late", *WHOLE[3:]]


def test_who_skips_a_call_is_missed_in_the_last_one():
    film = record(scene, Act(1, "skips", 2), ranks=3)
    assert VERDICTS["a rank is missing"] in film.words and VERDICTS["the calls differ"] not in film.words
    assert VERDICTS["the calls differ"] in record(scene, Act(1, "skips", 1), ranks=2).words
    assert "ranks 0 and 2 wait in all_reduce for rank 1, which never came" in film.words
    assert told(film, 0) == told(film, 2) == WHOLE[:6]
    assert told(film, 1) == [*WHOLE[:3], "skips", "computes", *WHOLE[5:]]
    assert [row["call"] for row in film.rows if row["rank"] == 1 and "call" in row] == [1, 2]  # as torch counts
    [axis] = draw(film, "rank 1 skips", ["broadcast", "all_reduce"]).axes
    assert {"✗ skips", "returned"} <= {text.get_text() for text in axis.texts}
    assert len(axis.lines) == 2, "its end, and where it meets a call that was not meant for it"


def test_a_death_is_named_by_launch_and_by_torchrun_alone():
    act = Act(1, "dies before", 3)
    film = record(scene, act, ranks=2)
    assert told(film, 1)[-1] == "died" and "rank 1 was killed by SIGKILL" in film.words
    assert VERDICTS["a rank has died"] in film.words
    said = torchrun_alone(scene, act, ranks=2)
    # a busy system may clear the dead one away only after rank 0 has told of the lost connection, and ended
    assert ("exitcode: -9" in said or "by peer" in said) and said.endswith("(exit status 1)")


def test_each_verdict_is_ticked_once_it_was_heard():
    heard = set()
    for found, words in enumerate(VERDICTS.values(), 1):
        told = _told(Film(Act(0, "skips", 1), [], 0.0, f"finished anything … {words}"), heard)["ticks"]
        assert told.count("✓") == found and told.count("☐") == 4 - found


def test_what_cannot_be_played_is_said(monkeypatch):
    with pytest.raises(ValueError, match="a call from 1 to 3"):
        theatre(scene, call=4)
