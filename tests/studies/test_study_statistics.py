"""Statistics of studies against slow, literal twins, and what they refuse to say."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rliable import metrics

from repertory.studies import statistics
from repertory.studies.statistics import (
    ENV_STEPS_PER_S,
    FINAL_SCORE,
    SCORE_PER_STEP,
    SECONDS_TO_TARGET,
    curve,
    estimate,
    improvement,
    interquartile_mean,
    ladder,
    last_that_pays,
    leading,
    profiles,
    ranked,
    reference,
    shared_span,
    span,
    standing,
    standings,
    told_apart,
)
from studies_made_up import final, scaled, study, trial

SCORES = st.lists(st.floats(-1000, 1000), min_size=1, max_size=12).map(tuple)


def slow_iqm(values: tuple[float, ...]) -> float:
    """Sort, cut a quarter off each end, add up, divide."""
    ordered = sorted(values)
    cut = int(0.25 * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def slow_improvement(ours: tuple[float, ...], theirs: tuple[float, ...]) -> float:
    """Count pairs."""
    won = sum(1.0 if x > y else 0.5 if x == y else 0.0 for x in ours for y in theirs)
    return won / (len(ours) * len(theirs))


def slow_chance(ours: tuple[float, ...], theirs: tuple[float, ...]) -> float:
    """How often a random division of all runs parts them at least as far the same way, and as often the other way."""
    every, size = ours + theirs, len(ours)

    def share(chosen: tuple[int, ...]) -> float:
        first = tuple(every[index] for index in chosen)
        rest = tuple(every[index] for index in range(len(every)) if index not in chosen)
        return slow_improvement(first, rest)

    seen = share(tuple(range(size)))
    shares = [share(chosen) for chosen in itertools.combinations(range(len(every)), size)]
    above, below = (sum(found >= seen - 1e-9 for found in shares), sum(found <= seen + 1e-9 for found in shares))
    return min(1.0, 2 * min(above, below) / len(shares))


@settings(max_examples=60, deadline=None)
@given(SCORES)
def test_interquartile_mean_is_that_of_rliable_and_of_a_slow_loop(values: tuple[float, ...]) -> None:
    found = float(interquartile_mean(np.asarray(values)))
    assert found == pytest.approx(slow_iqm(values), rel=1e-9, abs=1e-9)
    assert found == pytest.approx(float(metrics.aggregate_iqm(np.asarray(values)[:, None])), rel=1e-9, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(SCORES, SCORES)
def test_probability_of_improvement_counts_pairs_as_rliable_does(x: tuple[float, ...], y: tuple[float, ...]) -> None:
    found = statistics.pairs_won(x, y)
    assert found == pytest.approx(slow_improvement(x, y))
    assert found == pytest.approx(
        float(metrics.probability_of_improvement(np.asarray(x)[:, None], np.asarray(y)[:, None]))
    )


@settings(max_examples=25, deadline=None)
@given(*[st.lists(st.integers(-4, 4).map(float), min_size=3, max_size=5).map(tuple)] * 2)
def test_contestants_are_told_apart_as_often_as_a_count_of_all_divisions_says(
    x: tuple[float, ...], y: tuple[float, ...]
) -> None:
    assert told_apart(x, y) == (slow_chance(x, y) <= statistics.CHANCE + 1e-9)


def test_same_data_give_the_same_interval_and_leave_the_global_generator_alone() -> None:
    values = (1.0, 4.0, 2.0, 9.0, 3.0)
    np.random.seed(5)
    expected = np.random.random(3).tolist()
    np.random.seed(5)
    first = estimate.__wrapped__(values)
    assert np.random.random(3).tolist() == expected
    np.random.seed(6)
    assert estimate.__wrapped__(values) == first


def test_interval_is_the_percentile_bootstrap_of_a_slow_loop() -> None:
    values = (10.0, 14.0, 11.0, 30.0, 12.0, 13.0, 9.0)
    rng = np.random.default_rng(0)
    drawn = [slow_iqm(tuple(rng.choice(values, len(values)))) for _ in range(4000)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    found = estimate(values)
    assert (found.low, found.high) == (pytest.approx(low, abs=0.6), pytest.approx(high, abs=0.9))


def test_improvement_has_an_interval_around_its_value() -> None:
    found = improvement((5.0, 6.0, 7.0, 8.0), (4.0, 5.5, 6.5, 3.0))
    assert found.low is not None
    assert found.high is not None
    assert 0.0 <= found.low < found.value < found.high <= 1.0


@pytest.mark.parametrize("seeds", [1, 2])
def test_below_three_seeds_no_interval_is_invented_and_no_two_are_told_apart(seeds: int) -> None:
    low, high = tuple(map(float, range(seeds))), tuple(map(float, range(100, 100 + seeds)))
    assert (estimate(high).low, estimate(high).high) == (None, None)
    assert improvement(high, low).low is None
    assert not told_apart(low, high)
    assert profiles({"a": low, "b": high}) == {}


def test_three_seeds_never_tell_apart_and_four_do() -> None:
    assert not told_apart((1.0, 2.0, 3.0), (10.0, 20.0, 30.0))
    assert told_apart((1.0, 2.0, 3.0, 4.0), (10.0, 20.0, 30.0, 40.0))
    assert statistics.chance_of_parting(3, 3) == pytest.approx(0.1)


def test_rates_of_three_runs_that_hardly_scatter_are_told_apart_and_those_that_do_are_not() -> None:
    assert told_apart((100.0, 101.0, 99.0), (200.0, 203.0, 198.0), steady=True)
    assert not told_apart((100.0, 300.0, 30.0), (200.0, 90.0, 400.0), steady=True)
    assert told_apart((1.0, 1.0, 1.0), (2.0, 2.0, 2.0), steady=True)
    assert not told_apart((1.0, 1.0), (2.0, 2.0), steady=True)


def test_never_is_later_than_any_time_and_has_no_interval() -> None:
    assert estimate((3.0, math.inf, 4.0, math.inf, 5.0)) == statistics.Estimate(5.0, None, None, 5)
    assert math.isinf(estimate((3.0, math.inf, math.inf)).value)
    assert told_apart((3.0, 4.0, 5.0, 6.0), (math.inf,) * 4)


def test_profile_is_the_share_of_runs_above_each_score() -> None:
    found = profiles({"a": (-10.0, 0.0, 10.0, 10.0), "b": (5.0, 5.0, 5.0)})
    for name, scores in (("a", (-10.0, 0.0, 10.0, 10.0)), ("b", (5.0, 5.0, 5.0))):
        one = found[name]
        literal = [100 * sum(score > tau for score in scores) / len(scores) for tau in one.x]
        assert one.y.tolist() == pytest.approx(literal)
        assert np.all(one.low <= one.y + 1e-12)
        assert np.all(one.y <= one.high + 1e-12)
    assert found["a"].y[0] == 100.0
    assert found["a"].y[-1] == 0.0


def test_last_score_is_carried_forward_for_solved_runs_only() -> None:
    solved, longer = trial("a", 0, [1, 5.0], "solved"), trial("a", 1, [1, 2, 3, 4.0])
    assert span([solved, longer], "seconds") == (1.0, 4.0)
    found = curve(study([solved, longer]), "a", "seconds")
    assert found is not None
    assert found.y[-1] == pytest.approx((5.0 + 4.0) / 2)
    stopped = trial("a", 0, [1, 5.0])
    assert span([stopped, longer], "seconds") == (1.0, 2.0)


def test_all_solved_curves_go_on_to_the_last_of_them() -> None:
    runs = [trial("a", seed, [1.0] * seed + [9.0], "solved") for seed in range(1, 4)]
    assert span(runs, "env_steps") == (1000.0, 4000.0)


def test_curve_leaves_out_scores_that_are_not_numbers_and_has_none_without_scores() -> None:
    gap = trial("a", 0, [1.0, math.nan, 3.0])
    found = curve(study([gap]), "a", "seconds")
    assert found is not None
    assert found.y.tolist() == pytest.approx(np.linspace(1, 3, 100).tolist())
    assert curve(study([trial("a", 0, []), trial("a", 1, [math.nan])]), "a", "seconds") is None


def test_curve_has_a_band_from_three_seeds_on() -> None:
    runs = [trial("a", seed, [float(seed), 10.0 + seed]) for seed in range(3)]
    found = curve(study(runs), "a", "updates")
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert np.all(found.low <= found.y)
    assert np.all(found.y <= found.high)
    two = curve(study(runs[:2]), "a", "updates")
    assert two is not None
    assert two.low is None


def test_mean_scores_are_compared_on_ground_that_all_runs_share() -> None:
    fast, slow = trial("fast", 0, [0, 10, 20, 30.0], pace=1000), trial("slow", 0, [0, 10, 20, 30.0], pace=500)
    results = study([fast, slow])
    assert shared_span(results, "env_steps") == (1000.0, 2000.0)
    assert SCORE_PER_STEP.values(results, "slow")[0] == pytest.approx(20.0)
    assert SCORE_PER_STEP.values(results, "fast")[0] == pytest.approx(5.0)


def test_a_run_that_ends_with_nan_has_no_final_score_however_good_it_was() -> None:
    results = study([trial("a", 0, [500.0, math.nan]), trial("a", 1, [1.0, 2.0])])
    assert FINAL_SCORE.values(results, "a") == (2.0,)


def test_standing_puts_the_best_first_with_negative_scores_and_with_times() -> None:
    results = final({"a": [-20.0] * 3, "b": [-5.0] * 3, "c": [-300.0] * 3}, target=-10.0)
    scores, times = standing(results, FINAL_SCORE), standing(results, SECONDS_TO_TARGET)
    assert scores is not None
    assert times is not None
    assert [place.contestant for place in scores.places] == ["b", "a", "c"]
    assert times.best.contestant in ("a", "b")
    assert math.isinf(times.places[-1].estimate.value)


def test_who_reaches_the_target_with_more_seeds_is_before_who_is_faster() -> None:
    sure = [trial("sure", seed, [0, 0, 0, 9.0]) for seed in range(3)]
    fast = [trial("fast", seed, [0, 9.0] if seed else [0, 0.0]) for seed in range(3)]
    found = standing(study([*fast, *sure], target=5.0), SECONDS_TO_TARGET)
    assert found is not None
    assert [(place.contestant, place.estimate.value) for place in found.places] == [("sure", 4.0), ("fast", 2.0)]


def test_who_misses_the_target_once_but_is_faster_else_is_not_called_behind() -> None:
    sure = [trial("sure", seed, [0.0] * (7 + seed % 3) + [9.0]) for seed in range(10)]
    fast = [trial("fast", seed, [0, 9.0] if seed else [0, 0.0]) for seed in range(10)]
    found = standing(study([*fast, *sure], target=5.0), SECONDS_TO_TARGET)
    assert found is not None
    assert (found.best.contestant, found.behind, found.level) == ("sure", (), ("fast",))


def test_a_criterion_that_no_contestant_met_has_no_winner() -> None:
    results = final({"a": [1.0] * 3, "b": [2.0] * 3}, target=1000.0)
    assert SECONDS_TO_TARGET not in [one.criterion for one in standings(results)]


def test_scaling_is_held_against_the_fewest_actors_and_stops_where_a_step_adds_less_than_half() -> None:
    rungs = ladder(scaled(), ENV_STEPS_PER_S)
    assert [rung.actors for rung in rungs] == [1, 2, 4, 8, 16, 32, 64]
    assert rungs[2].ideal == pytest.approx(4 * rungs[0].rate.value)
    assert last_that_pays(rungs).actors == 16


def test_times_are_told_by_their_median_whether_all_seeds_get_there_or_not() -> None:
    runs = [trial("a", seed, [0.0] * seconds + [9.0]) for seed, seconds in enumerate((1, 2, 9))]
    found = standing(study(runs, target=5.0), SECONDS_TO_TARGET)
    assert found is not None
    assert (found.best.estimate.value, found.best.estimate.low, found.best.estimate.high) == (3.0, 2.0, 10.0)


def test_the_time_to_a_target_leads_if_it_was_reached_else_the_score_and_of_actors_the_speed() -> None:
    scores = {"a": [1.0] * 3, "b": [2.0] * 3}
    assert leading(final(scores)) is leading(final(scores, target=9.0)) is FINAL_SCORE
    assert leading(final(scores, target=2.0)) is leading(final(scores, "ablate", target=2.0)) is SECONDS_TO_TARGET
    assert leading(scaled()) is ENV_STEPS_PER_S
    assert standings(final(scores, target=2.0))[0].criterion is SECONDS_TO_TARGET


def test_the_best_comes_first_but_variants_and_numbers_of_actors_keep_their_order() -> None:
    scores = {"a": [1.0] * 3, "b": [3.0] * 3, "c": [2.0] * 3}
    runs = [*final(scores).trials, trial("silent", 0, [])]
    assert [one.name for one in ranked(study(runs))] == ["b", "c", "a", "silent"]
    assert [one.name for one in ranked(study(runs, "ablate"))] == ["a", "b", "c", "silent"]
    assert (reference(study(runs)), reference(study(runs, "ablate")), reference(study([]))) == ("b", "a", "")
