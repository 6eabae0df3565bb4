"""The job that lesson 5.4 stops and begins again, on two ranks of a CPU. What the lesson says of each loss."""

import matplotlib
import torch

from ddplab import launch
from ddplab.course.resuming import GOES_ON, PARTS, calm, lose, off, resumed

matplotlib.use("Agg")
KEPT = {part.replace(" ", "_"): "kept" for part in PARTS}


def ends(*lost, stopped_after=2, first=2):
    """How far off a job ends that has lost these."""
    return off(launch(resumed, lost, stopped_after, first, quiet=True).results[0][0])


def test_with_every_part_carried_over_not_one_bit_differs():
    assert ends() == 0
    assert torch.equal(launch(resumed, quiet=True).results[1][0], calm()[0])


def test_the_random_state_costs_least_and_the_model_alone_most_after_one_epoch_two_and_three():
    lost = [*([part] for part in PARTS), PARTS]
    both, twice = (["optimizer", "scheduler"], 2, 2), ([], 2, 1)  # the other trains an epoch twice
    ways = [(them, after, after) for after in (1, 2, 3) for them in lost]
    *found, two_lost, again = launch(lambda: [resumed(*way)[0] for way in [*ways, both, twice]], quiet=True).results[0]
    found = [dict(zip((*PARTS, "all"), map(off, found[at : at + 5]), strict=True)) for at in (0, 5, 10)]
    for far in found:
        assert min(far, key=far.get) == "random state" and far["model"] > far["all"]
    assert found[1]["random state"] < off(again) < found[1]["optimizer"] and found[1]["all"] > found[1]["scheduler"]
    assert off(two_lost) > found[1]["optimizer"] + found[1]["scheduler"]
    assert found[2]["scheduler"] < found[1]["scheduler"] / 2


def test_without_the_optimisers_state_the_rate_is_twice_what_it_is_in_peace_and_a_new_cosine_begins_flat():
    def rates(optimizer, scheduler):  # of the 24 steps that are left
        there = []
        for _ in range(24):
            there.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return there

    def anew():
        optimizer = torch.optim.Adam(torch.nn.Linear(1, 1).parameters(), lr=0.01)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=48)

    calm, lost_optimizer, lost_scheduler = anew(), anew(), anew()
    rates(*calm)
    lost_optimizer[1].load_state_dict(calm[1].state_dict())
    lost_scheduler[0].load_state_dict(calm[0].state_dict())
    peace, twice, flat = (torch.tensor(rates(*it)) for it in (calm, lost_optimizer, lost_scheduler))
    assert torch.allclose(twice, 2 * peace) and (flat[1:] > peace[1:]).all()
    assert flat[12] > 0.85 * flat[0] and peace[12] < 0.3 * peace[0]


def test_the_curve_of_a_run_that_has_lost_its_model_jumps_where_it_was_stopped():
    words, figure = lose(**KEPT | {"model": "lost"}, stopped_after=1, goes_on_at=GOES_ON[0])
    peace, gone_on, *_ = [line for line in figure.axes[0].lines]
    assert words.startswith("lost: model; the final weights are ") and not words.endswith(" 0.0% off")
    assert list(gone_on.get_ydata()[:12]) == list(peace.get_ydata()[:12])
    assert gone_on.get_ydata()[12] > peace.get_ydata()[12] + 0.3


def test_an_epoch_that_is_trained_twice_makes_a_longer_curve():
    words, figure = lose(**KEPT, stopped_after=2, goes_on_at=GOES_ON[1])
    assert words.startswith("lost: nothing; ") and len(figure.axes[0].lines[1].get_ydata()) == 60
