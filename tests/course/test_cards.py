"""The card dealer deals what torch's sampler deals, and counts who is dealt twice and who is not."""

import pytest

from ddplab.course.cards import counted, dealer, dealt


def test_ten_cards_for_four_ranks():
    padded = dealt(10, 4, shuffle=False, set_epoch=True, drop_last=False)
    assert padded == [[[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]] * 3
    assert counted(padded, 10) == "\n".join(
        [f"epoch {n}: dealt twice: 2 (0, 1); to nobody: none" for n in range(3)] + ["in no epoch: none"]
    )
    cut = dealt(10, 4, shuffle=True, set_epoch=False, drop_last=True)
    assert cut[0] == cut[1] == cut[2] and counted(cut, 10).endswith(
        "epoch 2: dealt twice: none; to nobody: 2 (2, 6)\nin no epoch: 2 (2, 6)"
    )
    fresh = dealt(10, 4, shuffle=True, set_epoch=True, drop_last=True)
    assert fresh[0] == cut[0] != fresh[1] and counted(fresh, 10).endswith("in no epoch: none")


def test_the_dealer_says_what_it_offers(capsys):
    dealer(samples=8, ranks=2)
    assert capsys.readouterr().out.startswith("epoch 0: dealt twice: none; to nobody: none\n")
    with pytest.raises(ValueError, match="ranks is one of 2, 3, 4, not 5"):
        dealer(ranks=5)
