"""Bookings for a made-up job: the cheapest on paper, what played days make of it, and what is refused."""

from types import SimpleNamespace

import matplotlib
import pytest

from ddplab.course import booking
from ddplab.course.booking import DAYS, FINE, HOURS, OFFERED, PRICES, Booking, bills, cheapest, mean_bill, playable
from ddplab.course.plan import MACHINES

matplotlib.use("Agg")
TEN, HUNDRED, NVLINK = PRICES


def test_the_machines_of_the_price_list_are_those_of_the_plan():
    assert all(MACHINES[name].flops and MACHINES[name].memory for name in PRICES)


def test_a_bill_is_hours_times_gpus_times_the_price_and_a_fine_for_each_hour_that_is_late():
    hours, dollars = Booking(HUNDRED, 32, 16).on_paper()
    assert hours < HOURS and dollars == pytest.approx(hours * 32 * PRICES[HUNDRED])
    hours, dollars = Booking(TEN, 8, 8).on_paper()
    assert hours > HOURS and dollars == pytest.approx(hours * 8 * PRICES[TEN] + FINE * (hours - HOURS))


def test_the_cheapest_on_paper_is_in_time_but_not_on_every_played_day():
    rival, double = cheapest(), Booking(HUNDRED, 32, 16)
    assert rival == Booking(HUNDRED, 16, 32) and rival.on_paper()[0] <= HOURS
    assert rival.on_paper()[1] < double.on_paper()[1] and mean_bill(double) < mean_bill(rival)
    assert any(hours > HOURS for hours, _ in rival.played()) and all(hours <= HOURS for hours, _ in double.played())


def test_a_day_is_the_same_for_all_and_for_ever():
    one, other = Booking(NVLINK, 8, 8).played(50), Booking(NVLINK, 16, 8).played(50)
    assert one == Booking(NVLINK, 8, 8).played(50) and len(set(one)) == 50
    order = [sorted(range(50), key=lambda day: days[day][0]) for days in (one, other)]
    assert order[0][:3] == order[1][:3]
    planned = Booking(NVLINK, 8, 8).on_paper()[0]
    assert all(0.7 * planned < hours < 1.4 * planned for hours, _ in one)


@pytest.mark.parametrize("number", range(4), ids=["speed", "bandwidth", "alpha", "waiting"])
def test_each_of_the_four_numbers_counts_on_a_played_day(number):
    def a_day(**off):
        thrown = iter([off.get("times", 1.0) if n == number else 1.0 for n in range(4)])
        return Booking(HUNDRED, 64, 8)._a_day(SimpleNamespace(uniform=lambda low, high: next(thrown)))

    assert a_day() == pytest.approx(Booking(HUNDRED, 64, 8).plan.step.seconds)
    slower = 0.75 if number < 2 else 1.25
    assert a_day(times=slower) > a_day()


@pytest.mark.parametrize(
    ("booked", "why"),
    [
        (Booking(HUNDRED, 64, 16), "1,024 samples a step; 512 are the most"),
        (Booking(HUNDRED, 8, 64), "85 GB on a card of 80"),
        (Booking(TEN, 64, 8), "the plan cannot say, the network decides: measure it"),
    ],
    ids=["batch", "memory", "unknown"],
)
def test_what_cannot_be_played_is_refused_and_says_why(booked, why):
    words, figure = bills(you=booked)
    assert booked.refused == why and f"refused: {why}" in words and len(figure.axes[0].lines) == 1
    assert "winner" not in words


def test_each_booking_has_a_mark_and_a_cloud_of_its_own():
    words, figure = bills(rival=cheapest(), you=Booking(NVLINK, 32, 16))
    cloud, mark, other, mine, deadline = figure.axes[0].lines
    assert len(cloud.get_xdata()) == len(other.get_xdata()) == DAYS and mark.get_marker() != mine.get_marker()
    assert list(mark.get_xdata()) == [cheapest().on_paper()[0]] and set(deadline.get_xdata()) == {HOURS}
    assert "rival: 16 GPUs, PCIe, 100 Gb Ethernet, 32 samples each" in words
    paid = mean_bill(Booking(NVLINK, 32, 16)) - mean_bill(cheapest())
    assert words.endswith(f"The winner, on average: rival, by {paid:,.0f} $")
    assert bills(rival=cheapest(), you=Booking(HUNDRED, 32, 16))[0].endswith("The winner, on average: you, by 35 $")
    assert [it.get_text() for it in figure.axes[0].get_legend().get_texts()] == ["rival", "you"]


def test_only_what_the_lists_offer_can_be_booked():
    with pytest.raises(ValueError, match="gpus is 9; it must be one of 8, 16, 32, 64, 128"):
        Booking(HUNDRED, 9, 8)
    assert set(OFFERED) == {"machine", "gpus", "batch"}


def test_what_lesson_7_5_says_of_the_two_bookings_and_of_others(monkeypatch):
    def late(it):
        return sum(hours > HOURS for hours, _ in it.played())

    rival, double = cheapest(), Booking(HUNDRED, 32, 16)
    below = [it for it in playable() if mean_bill(it) < mean_bill(rival)]
    assert below == [double] and (late(rival), late(double)) == (83, 0)
    assert [round(it.on_paper()[1]) for it in (rival, double)] == [911, 919]
    assert [round(mean_bill(it)) for it in (rival, double)] == [987, 952]
    days = list(zip(rival.played(), double.played(), strict=True))
    less = [yours - his for (_, his), (_, yours) in days if his < yours]
    assert len(less) == 120 and round(max(less)) == 137
    assert all(hours > HOURS for (hours, his), (_, yours) in days if his > yours)
    too_late = sum(max(0, hours - HOURS) for (hours, _), _ in days) / DAYS
    assert FINE - (mean_bill(rival) - mean_bill(double)) / too_late > 10
    assert 1.4 < Booking(HUNDRED, 64, 8).on_paper()[1] / double.on_paper()[1] < 1.6
    hours, dollars = Booking(HUNDRED, 64, 32).on_paper()  # 2,048 samples in a step
    assert (round(hours, 1), round(dollars)) == (5.8, 921)
    quickest = {n: min(it.on_paper()[0] for it in playable() if (it.machine, it.gpus) == (TEN, n)) for n in (8, 16)}
    assert [round(hours) for hours in quickest.values()] == [45, 37]
    assert {it.gpus for it in playable() if it.machine == TEN} == {8, 16}
    monkeypatch.setattr(booking, "OFF", 0.1)
    assert [round(mean_bill(it)) for it in (rival, double)] == [924, 925]
