"""Darts: what a film of them is made of comes from the ranks, and it reads without a browser."""

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from ddplab import launch
from ddplab.course import darts as game
from ddplab.course.darts import PLAYERS, THROWS, WINS, Game, draw, fall, landed, logging_darts, nearest, words


def throw(seed=0):
    hand = torch.Generator().manual_seed(seed + dist.get_rank())
    torch.rand(3, generator=hand), torch.rand(2, 3, generator=hand)  # no darts
    return (torch.rand(20, 2, generator=hand).norm(dim=1) < 1).sum().item()


def test_each_dart_of_a_rank_is_where_it_fell_and_the_count_is_the_ranks_own(capsys):
    cloudpickle.register_pickle_by_value(__import__(__name__))
    run = launch(logging_darts(throw), device="cpu", quiet=True)
    darts = landed(run)
    assert [len(rank) for rank in darts] == [20, 20] and darts[0] != darts[1]
    said = words(darts).splitlines()
    assert [line.split(":")[0] for line in said[:2]] == [f"rank {n}    {run.results[n]} of 20 within" for n in (0, 1)]
    assert said[2].startswith(f"together  {sum(run.results)} of 40 within: π ≈ {sum(run.results) / 10:.3f}")
    assert len(draw(darts).axes) == 3
    fall(run)
    assert capsys.readouterr().out == words(darts) + "\n"


def test_a_run_without_darts_says_how_to_log_them():
    with pytest.raises(ValueError, match="logging_darts"):
        fall(launch(dist.get_rank, device="cpu", quiet=True))


def played(*throws):
    """A game of throws, each a bet and the player that is nearest."""
    it = Game()
    it.thrown = [(PLAYERS[bet], [3.14 if n == first else 3.2 for n in range(5)]) for bet, first in throws]
    return it


def test_a_throw_is_a_run_of_four_ranks_and_all_together_are_their_mean():
    it = Game()
    words, figure = it.throw(PLAYERS[1])
    assert words.startswith("Nothing is thrown yet.") and len(figure.axes[0].collections) == 0  # an invitation
    words, figure = it.throw(PLAYERS[1])
    [(bet, said)] = it.thrown
    assert bet == PLAYERS[1] and said[4] == pytest.approx(sum(said[:4]) / 4) and len(set(said)) > 2
    assert f"Throw 1 of 6: {PLAYERS[nearest(said)]} is nearest, with {said[nearest(said)]:.3f}." in words
    assert len(figure.axes[0].collections) == 6  # four ranks, a stroke and a ring
    assert len(words.splitlines()) == 3
    for _ in range(THROWS):
        it.throw(PLAYERS[4])
    assert len(it.thrown) == 1  # a new game


@pytest.mark.parametrize(
    ("throws", "points", "end"),
    [
        ([(0, 1)], 0, "You had bet on ● rank 0: nothing.\n0 points so far. 9 more win the game."),
        ([(4, 4)], 3, "all together: +3.\n3 points so far. 6 more win the game."),
        ([(0, 1)] * 5, 0, "0 points so far. It takes 9: this game is lost."),
        ([(0, 1)] * 4 + [(4, 4)], 3, "3 points so far. 6 more win the game."),
        ([(2, 2), (4, 4)], 9, "9 points so far. You have won, with 4 to spare."),
        ([(2, 2)] + [(0, 1)] * 5, 6, "The game ends with 6 points. You lose. Your best game: 6. Throw again?"),
        ([(2, 2)] * 6, 36, "The game ends with 36 points. You win. Your best game: 36. Throw again?"),
    ],
)
def test_what_a_bet_brings(throws, points, end):
    it = played(*throws)
    assert it.points == points and it.told().endswith(end) and len(it.told().splitlines()) == 3


def test_the_best_game_is_kept_and_wild_estimates_stay_on_the_board():
    it = played(*[(0, 0)] * THROWS)
    it.told()
    it.thrown = [(PLAYERS[3], [0.0, 4.0, 3.1, 3.2, 3.15])] * THROWS
    assert it.told().endswith("You lose. Your best game: 36. Throw again?")
    low, high = it.board().axes[0].get_xlim()
    assert all(low < x < high for marks in it.board().axes[0].collections for x, _ in marks.get_offsets())


def test_all_together_is_nearest_one_time_in_three_and_a_rank_one_in_six():
    torch.manual_seed(0)
    ranks = torch.distributions.Binomial(1000, torch.pi / 4).sample((20_000, 4)) * 4 / 1000
    said = torch.cat([ranks, ranks.mean(dim=1, keepdim=True)], dim=1).tolist()
    share = [sum(nearest(it) == player for it in said) / len(said) for player in range(5)]
    assert share[4] == pytest.approx(1 / 3, abs=0.02) and share[:4] == pytest.approx([1 / 6] * 4, abs=0.02)
    brought = [paid * part for paid, part in zip(game.PAYS, share, strict=True)]
    assert brought == pytest.approx([1] * 5, abs=0.12)  # a fair game
    assert nearest([3.1, 3.2, 3.1], bet=2) == 2 and nearest([3.1, 3.2, 3.1], bet=1) == 0  # who is as near has won
    assert max(game.PAYS) < WINS  # no single throw wins


def test_the_ranks_of_a_throw_have_darts_of_their_own():
    cloudpickle.register_pickle_by_value(__import__(__name__))
    first, again = (launch(game._estimates, 7, nproc_per_node=4, device="cpu", quiet=True).results for _ in "ab")
    assert first == again and len({own for own, _ in first}) > 1 and len({pooled for _, pooled in first}) == 1
