"""The waiting room: what is dealt, what a question and a name cost, and what lesson 7.3 says of points."""

import re
from itertools import chain

import pytest

from ddplab.course import waiting_room as room
from ddplab.course.timeline import Row, parts
from ddplab.course.waiting_room import BOLD, JOBS, NAMES, Job, Lanes, WaitingRoom, deal, heard, plays

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
    """Play a room of these jobs: a list of acts, (job, what); the room, and what stands on its page after each."""

    def acts(*them, names=ROOM):
        monkeypatch.setattr(room, "deal", lambda recorded, seed: of(names))
        it = WaitingRoom(RECORDED, 1)
        return it, [it._shown(it.act(job and job - 1, *does)) for job, *does in them]

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
    assert all(job.ranks == rows(late_of(job.name)) for job in jobs if job.name.startswith("rank "))
    assert all(job.name in NAMES and sorted(job.ranks) == sorted(rows(late_of(job.name))) for job in jobs)


def test_in_many_rooms_each_rank_and_each_job_comes():
    dealt = [job for seed in range(100) for job in deal(RECORDED, seed)]
    assert {job.name for job in dealt} == {*NAMES}


def spoken(board):
    """The rows of a board's HTML, as words: its lanes are images, and what is left of them is what they say."""
    return [re.sub(r"<img alt=\"(.*?)\".*?>|<[^>]*>", r" \1 ", row).split() for row in board.split("<tr")[2:]]


def test_a_question_costs_a_point_once_and_a_name_counts_once(played):
    asks = (1, "rank 1")
    it, shown = played(asks, asks, (1, "all, data"), (1, ROOM[0]), (1, "rank 2"))
    assert [one["score"] for one in shown] == 2 * ["room 1, points: -1 (0 right, 0 wrong, 1 asked)"] + 3 * [
        "room 1, points: -2 (0 right, 1 wrong, 1 asked)"
    ]
    assert "✗ all, data<br>→ rank 0, data" in shown[-1]["board"] and shown[-1]["board"].count("<select") == 4
    assert it.made == []


def test_before_a_job_is_named_only_rank_0_is_heard_and_who_was_asked(played):
    _, (shown,) = played((5, "rank 2"))
    rows = spoken(shown["board"])
    assert len(rows) == 15 and [row[-1] for row in rows[-3:]] == ["150", "ask", "0"]
    assert rows[-1][-4:] == ["1", "151", "1", "0"] and "forward 453 ms" in " ".join(rows[-1])
    assert shown["board"].count("<img") == 6 and shown["board"].count(">ask<") == 9
    assert shown["board"].count("<img") == played((5, "rank 0"))[1][0]["board"].count("<img") + 1, "rank 0 has spoken"
    assert played((2, "nobody"))[1][0]["board"].count("<img") == 5 + 2, "a name shows all lanes of its job"


def test_what_nobody_chose_and_a_room_that_is_not_over_are_told_of(played):
    _, shown = played((2, "it is …"), (None,), (2, "nobody"), (None,))
    assert [one["score"].partition("; ")[2] for one in shown] == [
        "choose in the list of job 2 what to name", "name all five first: 5 left", "", "name all five first: 4 left",
    ]  # fmt: skip


def test_at_the_end_of_a_room_stand_the_others_and_after_three_whom_you_are_ahead_of(played):
    names = ["rank 0, backward", "all, backward", "all, forward", "nobody", "rank 2, data"]
    right, wrong = list(enumerate(names, 1)), [(n, "rank 2, backward") for n in range(1, 6)]
    it, shown = played(*right, (None,), *right, (None,), *right, names=names)
    assert it.made == 3 * [(10, plays(names), plays(names, BOLD))] and it.made[0][1:] == (6, 7)
    assert shown[4]["score"] == "room 1: you 10, the careful 6, the bettor 7"
    assert shown[5]["score"].startswith("room 2, points: 0") and shown[5]["board"].count("<select") == 5
    assert shown[-1]["score"].endswith("; in all you 30, the careful 18, the bettor 21: you are ahead of both")
    assert played(*right, (None,), *wrong, (None,), *right, names=names)[1][-1]["score"].endswith("neither")
    asked = [(n, "rank 1") for n in (1, 2, 3)]  # 7 points, the careful 6
    three = [*asked, *right, (None,), *asked, *right, (None,), *asked, *right]
    assert played(*three, names=names)[1][-1]["score"].endswith(
        "in all you 21, the careful 18, the bettor 21: you are ahead of the careful"
    )


def test_its_rooms_follow_each_other_and_another_seed_has_others():
    def rooms(seed):
        it, dealt = WaitingRoom(RECORDED, seed), []
        for _ in range(3):
            dealt.append([job.name for job in it.jobs])
            [it.act(n, "nobody") for n in range(5)]
            it.act(None)
        return dealt, it.made

    seven, _ = rooms(12)
    assert rooms(12)[0] == seven != rooms("tea")[0] and seven[0] != seven[1] != seven[2]


def test_who_asks_everybody_makes_nothing_who_asks_until_sure_5_to_8_and_the_bettor_more_over_many_rooms(played):
    everybody = [(n, f"rank {rank}") for n in range(1, 6) for rank in (1, 2)]
    assert played(*everybody, *enumerate(ROOM, 1))[0]._points() == (0, 5, 0, 10)
    dealt = [[job.name for job in deal(RECORDED, seed)] for seed in range(1000)]
    careful, bettor = [plays(names) for names in dealt], [plays(names, BOLD) for names in dealt]
    assert {*careful} == {5, 6, 7, 8} and (min(bettor), max(bettor)) == (3, 10)
    assert f"{sum(careful) / 1000:.1f} {sum(bettor) / 1000:.1f}" == "6.7 7.1"
    busy = [name for names in dealt for name in names if heard(name, 0) in room.PHASES]
    assert sum(name.startswith("all") for name in busy) / len(busy) == pytest.approx(0.75, abs=0.02)


def test_from_rank_0_alone_two_jobs_may_look_alike_and_from_all_three_no_two_do():
    assert heard("rank 0, data", 0) == heard("all, data", 0) != heard("in turn, data", 0)
    assert heard("rank 1, data", 0) == heard("rank 2, forward", 0) == "waits"
    assert len({tuple(heard(name, rank) for rank in range(3)) for name in NAMES}) == len(NAMES)


def test_the_steps_of_all_jobs_are_about_equally_long_and_where_nobody_is_slow_the_phases_are_alike():
    for steps in chain(*RECORDED.values()):
        assert all(step[-1].end - step[0].start == pytest.approx(1000 * room.SECONDS + 4) for step in steps)
    nobody = parts([*chain(*RECORDED["nobody"][0])])
    assert nobody["data"] == pytest.approx(nobody["forward"]) == pytest.approx(nobody["backward"])


def test_where_nobody_can_play_rank_0_speaks_and_invites():
    (stays, _) = WaitingRoom(RECORDED, 12)._repr_mimebundle_()
    said = stays["text/plain"].splitlines()
    assert stays["text/html"].count("<img") == 5 and said[-1] in stays["text/html"] and len(stays) == 2
    assert said[0].split() == ["ms", "a", "step", *room.HEADS] and len(said) == 7 and "live" in said[-1]
    assert said[1].split() == ["job", "1", "rank", "0", "1", "1", "151", "0"], "slow, or all are: it cannot be told"


def test_the_page_is_answered_act_by_act(monkeypatch):
    it = WaitingRoom(RECORDED, 12)
    page = it._widget()
    page.asked = [1, 0, "rank 1"]
    assert it.asked[0] == {0, 1} and page.shown["score"].endswith("1 asked)")
    page.asked = [2, None]
    assert page.shown["score"].endswith("5 left")


def test_a_picture_of_a_job_has_a_lane_and_four_numbers_for_each_rank():
    lanes = Lanes(RECORDED["rank 1, data"])
    assert lanes._repr_html_().count("<img") == 3 and "<td>151</td><td>1</td>" in lanes._repr_html_()
    assert repr(lanes).splitlines()[1].split() == ["rank", "0", "1", "1", "1", "150"]
