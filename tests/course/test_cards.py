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
    new = counted(dealt(10, 4, shuffle=True, set_epoch=True, drop_last=False), 10).splitlines()
    assert len({line.partition(": ")[2] for line in new[:3]}) == 3  # not always the same two are dealt twice
    assert fresh[0] == cut[0] != fresh[1] and counted(fresh, 10).endswith("in no epoch: none")


def test_the_dealer_says_what_it_offers(capsys):
    dealer(samples=8, ranks=2)
    assert capsys.readouterr().out.startswith("epoch 0: dealt twice: none; to nobody: none\n")
    with pytest.raises(ValueError, match="ranks is one of 2, 3, 4, not 5"):
        dealer(ranks=5)
    with pytest.raises(ValueError, match="epochs is one of 1, 2, 3, not 4"):
        dealer(epochs=4)
    with pytest.raises(ValueError, match=r"offer is one of samples, .*, epochs, not 'seed'"):
        dealer(offer=["seed"])


def test_the_padding_counts_twice_what_the_model_reads_wrong(capsys):
    shown = {"shuffle": False, "drop_last": False, "epochs": 1, "wrong": [0, 1]}
    for ranks, right in ((2, "8 of 10 right: 0.800"), (3, "8 of 12 right: 0.667"), (4, "8 of 12 right: 0.667")):
        dealer(ranks=ranks, **shown)
        (line,) = capsys.readouterr().out.splitlines()
        assert line.endswith(f"; to nobody: none; {right}")
    dealer(**shown | {"drop_last": True})
    assert capsys.readouterr().out == "epoch 0: dealt twice: none; to nobody: 2 (8, 9); 6 of 8 right: 0.750\n"
