"""Films of blocks: which round a message belongs to, what is held then, and how it reads where nobody can play it."""

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from ddplab.course.films import Strip, frames, shoot
from ddplab.course.messages import Message


def chain(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(x, rank - 1)
    if rank < size - 1:
        dist.send(x, rank + 1)


def chain_from_anybody(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(x)
    if rank < size - 1:
        dist.send(x, rank + 1)


def swap(x):
    place, other = torch.empty_like(x), 1 - dist.get_rank()
    both = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, place, other)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    x.copy_(place)


def film_of(way, ranks):
    cloudpickle.register_pickle_by_value(__import__(__name__))
    return shoot(way, ranks, numbers=2)


@pytest.mark.parametrize("way", [chain, chain_from_anybody])
def test_a_chain_takes_a_round_for_each_rank(way):
    film = film_of(way, 3)
    assert [frame.sent for frame in film] == [[], [(0, 1, 16)], [(1, 2, 16)]]
    assert [frame.held for frame in film] == [
        [(1, 2), (10, 20), (100, 200)],
        [(1, 2), (1, 2), (100, 200)],
        [(1, 2), (1, 2), (1, 2)],
    ]


def test_both_at_once_is_one_round():
    film = film_of(swap, 2)
    assert len(film) == 2 and film[1].held == [(10, 20), (1, 2)] and film[1].sent == [(0, 1, 16), (1, 0, 16)]


def test_a_collective_is_a_round_in_which_nobody_is_named():
    film = film_of(dist.all_reduce, 2)
    assert [frame.sent for frame in film] == [[], []] and film[1].held == [(11, 22)] * 2


def by_way_of_rank_0(x):
    rank, others = dist.get_rank(), range(1, dist.get_world_size())
    if rank > 0:
        dist.send(x, 0)
        dist.recv(x, 0)
        return
    for other in others:
        part = torch.empty_like(x)
        dist.recv(part, other)
        x += part
    for other in others:
        dist.send(x, other)


def test_what_waits_for_a_busy_rank_flies_when_it_is_received():
    """All send at once, and rank 0 has as many rounds to receive in: as many as a ring takes, 2(N - 1)."""
    film = film_of(by_way_of_rank_0, 4)
    assert [[way[:2] for way in frame.sent] for frame in film] == [
        [], [(1, 0)], [(2, 0)], [(3, 0)], [(0, 1)], [(0, 2)], [(0, 3)]
    ]  # fmt: skip
    assert [frame.held[0][0] for frame in film] == [1, 11, 111, 1111, 1111, 1111, 1111]


@pytest.mark.parametrize("other", [1, 7])
def test_a_receive_that_nobody_sends_to_has_a_frame_all_the_same(other):
    film = frames([[Message("recv", other, before=(3.0,))], []], [(3.0,), (4.0,)])
    assert [frame.held for frame in film] == [[(3.0,), (4.0,)]] * 2


def test_a_strip_says_every_frame_and_marks_what_has_changed():
    strip = Strip(film_of(chain, 2))
    assert str(strip) == repr(strip) == "1 2 | 10 20\n1 2 | 1 2"
    page = strip._repr_html_()
    assert page.count("<table") == 2 and "1: 0→1" in page and page.count("<b style=") == 2
