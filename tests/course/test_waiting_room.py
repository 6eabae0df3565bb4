"""The waiting room: what is dealt, what a question and a name cost, and what lesson 7.3 says of points."""

from itertools import chain

import matplotlib
import pytest

from ddplab.course import waiting_room as room
from ddplab.course.moving import move
from ddplab.course.timeline import Row, parts
from ddplab.course.waiting_room import JOBS, NAMES, OFFERED, Job, ask_or_name, careful, deal, heard, lanes_of

matplotlib.use("Agg")
ROOM = ["rank 0, data", "all, data", "in turn, data", "nobody", "rank 2, forward"]


def rows(late, steps=range(3), ranks=range(3)):
    """What three ranks record of a job, on a machine where nothing takes time but what is late on purpose."""
    told = [[] for _ in ranks]
    for step in steps:
        loses = [1000 * sum(it.values()) for it in late[step]]
        for rank in ranks:
            its, now = [], 1000.0 * step
            for phase in ("data", "forward", "backward", "optimiser"):
                took = 1 + 1000 * late[step][rank].get(phase, 0)
                waits = max(loses) - loses[rank] if phase == "backward" else 0
                its.append(Row("phase", phase, now, now + took + waits, "thread 1"))
                if phase == "backward":
                    its.append(Row("communication", "gloo:all_reduce", now + took, now + took + waits, "thread 2"))
                now += took + waits
            told[rank].append(its)
    return told


RECORDED = {name: rows(late) for name, late in JOBS.items()}


def of(names):
    return [Job(name, rows(late_of(name))) for name in names]


def late_of(name):
    if not name.startswith("rank "):
        return JOBS[name]
    late = JOBS["rank 1" + name[6:]]
    return [[ranks[1] if rank == int(name[5]) else {} for rank in range(3)] for ranks in late]


@pytest.fixture
def played(monkeypatch):
    """Play a room: a list of acts, (job, what); the words after each."""
    monkeypatch.setattr(room, "_first", {})

    def acts(*them, names=ROOM, seed=1):
        play, chosen, words = ask_or_name(of(names), seed), dict.fromkeys(OFFERED, "…"), []
        words.append(play(**chosen))
        for job, does in them:
            chosen[f"job_{job}"] = does
            words.append(play(**chosen))
        return words

    return acts


def test_of_eight_jobs_one_rank_is_slow_in_three_all_in_three_each_in_one_and_nobody_in_one():
    kinds = [name.partition(",")[0] for name in JOBS]
    assert {kind: kinds.count(kind) for kind in kinds} == {"rank 1": 3, "all": 3, "in turn": 1, "nobody": 1}
    phases = [name.partition(", ")[2] for name in JOBS]
    assert phases[:3] == phases[3:6] == ["data", "forward", "backward"] and len(NAMES) == 3 * 3 + 5
    slow = [{(rank, *late) for ranks in JOBS["in turn, data"] for rank, late in enumerate(ranks) if late}]
    assert slow == [{(0, "data"), (1, "data"), (2, "data")}]
    assert len({str(late) for late in chain(*JOBS["nobody"])}) == 1


@pytest.mark.parametrize("seed", [7, -1, 0.5, "tea", "", None, ..., [1], float("nan")], ids=repr)
def test_any_seed_deals_five_of_them_no_two_alike_and_the_same_again(seed):
    jobs = deal(RECORDED, seed)
    assert jobs == deal(RECORDED, seed) and len({room._kind(job.name) for job in jobs}) == 5
    assert all(job.ranks == rows(late_of(job.name)) for job in jobs if job.slow is not None)
    assert all(job.name in NAMES and sorted(job.ranks) == sorted(rows(late_of(job.name))) for job in jobs)


def test_in_many_rooms_each_rank_and_each_job_comes():
    dealt = [job for seed in range(100) for job in deal(RECORDED, seed)]
    assert {job.name for job in dealt} == {*NAMES} and {job.slow for job in dealt} == {0, 1, 2, None}


def test_a_question_costs_a_point_once_and_a_name_counts_once(played):
    words = [told for told, _ in played((1, "ask rank 1"), (1, "…"), (1, "ask rank 1"), (1, "all, data"), (1, ROOM[0]))]
    assert "points: 0 (0 right, 0 wrong, 0 asked)" in words[0] and words[0].count("rank 0") == 5
    assert all("points: -1 (0 right, 0 wrong, 1 asked)" in it for it in words[1:4])
    assert all("points: -2 (0 right, 1 wrong, 1 asked)" in it for it in words[4:])
    assert [line.split("   ")[-1] for line in words[-1].splitlines()[1:3]] == ["✗ all, data", "it was rank 0, data"]
    assert all("the first time: none yet" in it for it in words)


def test_a_named_job_cannot_be_asked_any_more_and_shows_its_lanes(played):
    (_, empty), (told, lanes), (then, still) = played((2, "all, data"), (2, "ask rank 1"))
    assert empty.axes[0].get_title().startswith("name a job") and not any(
        it.get_paths() for it in empty.axes[0].collections
    )
    assert [*empty.get_size_inches()] == [*lanes.get_size_inches()], "the page stays as high as it is"
    assert "✓ all, data" in told and "points: 3" in told and told.count("?") == 4 * 2 * 4, "all its ranks have spoken"
    assert then == told.replace("0 asked)", "0 asked); nothing new: choose in the list of a job with a ?")
    assert lanes is still and lanes.axes[0].get_title() == "job 2: all, data"


def test_before_a_job_is_named_only_rank_0_is_heard_and_who_was_asked(played):
    told = played((5, "ask rank 2"))[-1][0].splitlines()
    assert [line.split() for line in told[13:16]] == [
        ["job", "5", "rank", "0", "1", "1", "1", "150"],
        ["rank", "1", "?", "?", "?", "?"],
        ["rank", "2", "1", "151", "1", "0"],
    ]
    assert sum("?" in line for line in told) == 9


def test_whatever_is_asked_or_named_the_table_is_as_high_and_no_wider_than_a_laptop_shows(played):
    everybody = [(n + 1, it) for n in range(5) for it in ("ask rank 1", "ask rank 2")]
    words = [told for told, _ in played(*everybody, *((n, "rank 2, backward") for n in range(1, 6)))]
    assert {told.count("\n") for told in words} == {1 + 5 * 3 + 2 - 1}
    assert max(map(len, "\n".join(words).splitlines())) <= 110


def test_at_the_end_the_points_stand_beside_those_of_who_asks_until_sure_and_the_first_try_is_kept(played):
    right = list(enumerate(ROOM, 1))
    last = played(*right)[-1][0].splitlines()[-2:]
    assert last == [
        f"points: 15 (5 right, 0 wrong, 0 asked); who asks until sure makes {careful(ROOM)} here",
        "your rooms, by seed, the first time: 1: 15",
    ]
    assert "first time: 1: 15, tea: 13" in played((1, "ask rank 1"), (1, "ask rank 2"), *right, seed="tea")[-1][0]
    assert "first time: 1: 15, tea: 13" in played((1, "ask rank 1"), *right, seed=1)[-1][0]


def test_who_asks_everybody_makes_5_and_who_asks_until_sure_10_to_13(played):
    everybody = [(n + 1, it) for n in range(5) for it in ("ask rank 1", "ask rank 2")]
    assert "points: 5 (5 right, 0 wrong, 10 asked)" in played(*everybody, *enumerate(ROOM, 1))[-1][0]
    made = [careful([job.name for job in deal(RECORDED, seed)]) for seed in range(1000)]
    assert {*made} == {10, 11, 12, 13} and careful([job.name for job in deal(RECORDED, 7)]) == 12


def test_from_rank_0_alone_two_jobs_may_look_alike_and_from_all_three_no_two_do():
    assert heard("rank 0, data", 0) == heard("all, data", 0) != heard("in turn, data", 0)
    assert heard("rank 1, data", 0) == heard("rank 2, forward", 0) == "waits"
    assert len({tuple(heard(name, rank) for rank in range(3)) for name in NAMES}) == len(NAMES)


def test_in_the_first_job_of_lesson_7_3_the_slow_rank_could_be_all():
    first = deal(RECORDED, 7)[0].name
    assert first == "rank 0, backward" and heard(first, 0) == heard("all, backward", 0)


def test_the_steps_of_all_jobs_are_about_equally_long_and_where_nobody_is_slow_the_phases_are_alike():
    for steps in chain(*RECORDED.values()):
        assert all(step[-1].end - step[0].start == pytest.approx(1000 * room.SECONDS + 4) for step in steps)
    nobody = parts([*chain(*RECORDED["nobody"][0])])
    assert nobody["data"] == pytest.approx(nobody["forward"]) == pytest.approx(nobody["backward"])


def test_it_is_moved_from_what_its_lists_offer(capsys):
    move(ask_or_name(deal(RECORDED, 7), 7), **OFFERED)
    assert "points: 0 (0 right, 0 wrong, 0 asked)" in capsys.readouterr().out
    assert len(lanes_of(RECORDED["nobody"]).axes[0].collections) > 9
