"""The adjuster: climbs to where most is trained, keeps no fall, rests when nothing helps."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from repertory.channels.channel import allocate
from repertory.roles.adjuster import CLEARLY, LONGEST_REST, PATH, SHORTEST_REST, Adjuster, judgements


class Trainings:
    """Trains at a rate that depends on the numbers at work, by a clock of its own."""

    def __init__(
        self,
        rate: Callable[[Sequence[int]], float],
        start: tuple[int, int, int],
        most: tuple[int, int, int],
        seed: int = 0,
        warm_up: float = 0.0,
    ) -> None:
        self.rate, self.warm_up, self.time, self.made, self.since = rate, warm_up, 100.0, 0.0, 100.0
        self.arrays = allocate(Adjuster.fields())
        self.arrays["active"][:] = self.arrays["kept"][:] = start
        self.most, self.seed, self.starts = most, seed, 0
        self.start()
        self.history = [start]

    def start(self) -> None:
        """Also again."""
        self.adjuster = Adjuster(
            self.arrays,
            self.most,
            lambda: int(self.made),
            period_s=10.0,
            seed=self.seed,
            start=self.starts,
            now=lambda: self.time,
        )
        self.starts += 1

    @property
    def active(self) -> tuple[int, ...]:
        return tuple(self.arrays["active"].tolist())

    def play(self, seconds: float, tick: float = 0.5) -> None:
        """Go on; right after a change nothing is trained for a while."""
        for _ in range(int(seconds / tick)):
            self.time += tick
            if self.time - self.since > self.warm_up:
                self.made += tick * self.rate(self.active)
            before = self.active
            self.adjuster.step()
            if self.active != before:
                self.since = self.time
                self.history.append(self.active)

    def path(self) -> list[tuple[tuple[int, ...], float, bool]]:
        rows = self.arrays["path"][: int(self.arrays["count"][0])]
        return [(tuple(int(x) for x in row[1:4]), float(row[4]), bool(row[5])) for row in rows]


def test_every_judgement_is_told_once_and_those_that_were_overwritten_are_not() -> None:
    arrays = allocate(Adjuster.fields())
    arrays["path"][0], arrays["count"][0] = (100.0, 1, 1, 2, 38.26, 1), 1
    assert judgements(arrays, 0) == ["adjuster: predictors 1, trainers 1, agents 2: 38.3 trainings a second, kept"]
    arrays["path"][1], arrays["count"][0] = (110.0, 1, 2, 2, 30.0, 0), 2
    assert judgements(arrays, 1) == [
        "adjuster: predictors 1, trainers 2, agents 2: 30.0 trainings a second, taken back"
    ]
    assert judgements(arrays, 2) == []
    arrays["path"][:], arrays["count"][0] = (0.0, 1, 1, 1, 5.0, 1), 2 * PATH + 3
    assert len(judgements(arrays, 5)) == PATH


def peak(best: Sequence[int]) -> Callable[[Sequence[int]], float]:
    """Fewer trainings the further from the best numbers."""
    return lambda active: 1000.0 - 100.0 * sum(abs(a - b) for a, b in zip(active, best, strict=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("start", "best"), [((1, 1, 1), (3, 2, 4)), ((4, 4, 4), (1, 3, 2)), ((2, 2, 2), (4, 4, 4))])
def test_the_adjuster_finds_the_best_numbers_and_stays(
    seed: int, start: tuple[int, int, int], best: tuple[int, int, int]
) -> None:
    run = Trainings(peak(best), start, (4, 4, 4), seed)
    run.play(1500)
    kept = [numbers for numbers, _, kept in run.path() if kept]
    assert kept[-1] == best
    reached = kept.index(best)
    assert set(kept[reached:]) == {best}


@pytest.mark.parametrize("seed", range(4))
def test_the_adjuster_changes_one_number_at_a_time_within_its_limits_and_keeps_no_fall(seed: int) -> None:
    rng, most = np.random.default_rng(seed), (3, 1, 5)
    rates = {numbers: float(rng.integers(50, 1000)) for numbers in itertools.product(*(range(1, n + 1) for n in most))}
    run = Trainings(lambda active: rates[tuple(active)], (2, 1, 2), most, seed)  # type: ignore[index]
    run.play(800)
    for before, after in itertools.pairwise(run.history):
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
        assert all(1 <= number <= limit for number, limit in zip(after, most, strict=True))
    path = run.path()
    assert len(path) > 60
    kept, rate, fell, gained_before = (2, 1, 2), rates[2, 1, 2], 0, None
    for numbers, measured, stays in path:
        np.testing.assert_allclose(measured, rates[numbers], rtol=0.02)  # type: ignore[index]
        gain = rates[numbers] / rate  # type: ignore[index]
        assert stays == (numbers == kept or gain >= CLEARLY or (gain >= 1 and numbers == gained_before))
        if numbers != kept:
            gained_before = numbers if gain >= 1 else None
        if stays:
            kept, rate = numbers, rates[numbers]  # type: ignore[index,assignment]
        fell += not stays
    assert fell > 5
    assert run.active == kept or run.rate(run.active) != run.rate(kept)


def test_a_change_that_is_kept_is_made_again_twice_as_large() -> None:
    run = Trainings(lambda active: 10.0 * active[2], (1, 1, 2), (1, 1, 60))
    run.play(90)
    agents = [numbers[2] for numbers in run.history]
    up = agents.index(3)
    assert agents[up : up + 5] == [3, 5, 9, 17, 25]  # by 8 at most


@pytest.mark.parametrize("seed", range(3))
def test_numbers_that_make_little_difference_drift_less_than_luck_would_have_them(seed: int) -> None:
    """From the most agents on, each fewer costs 3 %; a measurement is off by 8 %."""
    luck = np.random.default_rng(seed)
    off = {"until": 0.0, "by": 1.0}

    def rate(active: Sequence[int]) -> float:
        if run.time >= off["until"]:
            off.update(until=run.time + 5.0, by=float(luck.normal(1.0, 0.08)))
        return 100.0 * (1 - 0.03 * (24 - active[2])) * off["by"]

    run = Trainings(lambda _: 0.0, (1, 1, 24), (1, 1, 24), seed)
    run.rate = rate
    run.play(4_000)
    assert np.mean([numbers[2] for numbers, _, _ in run.path()]) > 21.5


def test_an_adjuster_that_is_started_again_goes_on_from_what_was_kept_and_chooses_anew() -> None:
    run = Trainings(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    first = set()
    for _ in range(12):
        run.play(15)  # one period to measure, half of one on trial
        assert run.active != (2, 2, 2)
        first.add(run.active)
        run.start()
        assert run.active == (2, 2, 2)
    assert len(first) > 2


def test_a_pause_does_not_count_as_time_without_training() -> None:
    run = Trainings(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    for _ in range(5):
        run.play(33)
        run.adjuster.settle()
        run.time += 500
    assert len(run.path()) >= 10
    assert min(rate for _, rate, _ in run.path()) > 650


def test_what_was_taken_back_is_not_tried_again_before_everything_else() -> None:
    run = Trainings(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    run.play(280)
    tried = [numbers for numbers in run.history if numbers != (2, 2, 2)]
    assert len(set(tried[:6])) == len(set(tried[6:12])) == 6


def test_after_a_fall_the_old_numbers_are_measured_anew_before_the_next_change() -> None:
    run = Trainings(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    run.play(400)
    path = run.path()
    for (numbers, _, kept), (after, _, stays) in itertools.pairwise(path):
        assert kept == (numbers == (2, 2, 2))
        assert kept or (after, stays) == ((2, 2, 2), True)


def test_when_no_change_was_any_good_it_rests_twice_as_long_each_time() -> None:
    run = Trainings(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    run.play(1_500)
    rests = [len(list(of)) - 1 for still, of in itertools.groupby(run.path(), key=lambda row: row[2]) if still]
    assert [rest for rest in rests if rest][:5] == [2, 4, 8, 16, 16]
    assert rests[:7] == [0, 0, 0, 0, 0, 0, 2], "a period to measure between two trials"


def test_a_better_place_is_found_after_a_rest_and_ends_it() -> None:
    run = Trainings(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    run.play(1_500)
    assert run.adjuster.state()["rest"] == LONGEST_REST
    run.rate = peak((3, 2, 2))
    run.play(400)
    assert (3, 2, 2) in [numbers for numbers, _, kept in run.path() if kept]
    run.rate = peak((1, 1, 3))
    run.play(1_500)
    assert [numbers for numbers, _, kept in run.path() if kept][-1] == (1, 1, 3)


def test_a_resumed_adjuster_rests_on_and_does_not_try_again_what_was_in_vain() -> None:
    run = Trainings(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    for seconds in (60, 60, 60):  # each ends in the midst of a trial, or of the rest
        run.play(seconds)
        state = json.loads(json.dumps(run.adjuster.state()))
        run.start()
        run.adjuster.load_state(state)
    tried = [numbers for numbers, _, kept in run.path() if not kept]
    assert len(set(tried)) == len(tried) == 6
    assert run.adjuster.state()["rest"] == 2 * SHORTEST_REST
    run.start()
    run.adjuster.load_state({})


def test_the_time_right_after_a_change_does_not_count() -> None:
    run = Trainings(lambda _: 100.0, (2, 2, 2), (3, 3, 3), warm_up=2.0)
    run.play(200)
    assert len(run.path()) >= 19
    np.testing.assert_allclose([rate for _, rate, _ in run.path()], 100.0, rtol=0.02)


def test_a_measurement_that_begins_late_takes_its_time() -> None:
    """The adjuster had no turn for a while: it must not judge by no time at all."""
    run = Trainings(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    run.play(600, tick=12.0)
    path = run.path()
    assert len(path) > 20
    for numbers, rate, kept in path:
        np.testing.assert_allclose(rate, run.rate(numbers), rtol=0.02)
        assert kept == (numbers == (2, 2, 2))


def test_with_no_choice_the_adjuster_changes_nothing() -> None:
    run = Trainings(lambda _: 100.0, (1, 1, 1), (1, 1, 1))
    run.play(100)
    assert run.history == [(1, 1, 1)]
    assert len(run.path()) >= 9


def test_the_path_keeps_the_latest() -> None:
    run = Trainings(lambda _: 100.0, (1, 1, 1), (2, 2, 2))
    run.arrays["count"][0] = PATH - 1
    run.play(21)  # the first period begins with the first look
    assert run.arrays["count"][0] == PATH + 1
    assert run.arrays["path"][PATH - 1, 0] == 110.5
    assert run.arrays["path"][0, 0] == 120.5
