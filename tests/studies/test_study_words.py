"""The plain words of a study: they follow the numbers, and claim no more than the seeds show."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from repertory.studies.results import Results
from repertory.studies.words import answer, brief, listed, number, remarks
from studies_made_up import failed, final, grand, scaled, study, swapped, trial

CLEAR = {"alpha": [10.0, 11, 12, 13, 14], "beta": [30.0, 31, 32, 33, 34], "gamma": [50.0, 51, 52, 53, 54]}
"""Five seeds each, of which no two contestants share a score."""


def renamed(text: str, one: str, other: str) -> str:
    """The text with two names exchanged."""
    names = {one: other, other: one}
    return re.sub(rf"\b({one}|{other})\b", lambda found: names[found[0]], text)


def timed(
    seconds: dict[str, list[int | None]], kind: str = "compare", budget: str = "until 45, at most 20 s"
) -> Results:
    """A study in which each seed reaches 45 after so many seconds, or never within 20."""
    runs = [
        trial(name, seed, [10.0] * (19 if end is None else end - 1) + [20.0 if end is None else 50.0])
        for name, ends in seconds.items()
        for seed, end in enumerate(ends)
    ]
    return replace(study(runs, kind, target=45.0), budget=budget)


# The answer to the title: compare and report


def test_the_highest_score_answers_where_there_is_no_target() -> None:
    said = "`gamma` scored highest after 60 s, 52 (5 seeds, 50.3 to 53.7); 5 seeds show `gamma` ahead of every other."
    assert answer(final(CLEAR)) == answer(final(CLEAR, "report")) == said


def test_budgets_that_differ_are_not_named() -> None:
    own = replace(final(CLEAR, "report"), budget="each run's own")
    assert answer(own).startswith("`gamma` scored highest, 52 (5 seeds")


def test_the_first_to_reach_the_target_answers_where_there_is_one() -> None:
    said = answer(timed({"alpha": [9, 10, 11, 12], "beta": [2, 3, 4, 5]}))
    assert said == (
        "`beta` reached 45 first, after 3.5 s (median of 4 seeds, 2 to 5); "
        "4 seeds show `beta` ahead of `alpha` (10.5 s)."
    )


def test_who_was_sooner_with_fewer_seeds_is_named_beside_the_one_that_reached_it_with_all() -> None:
    said = answer(timed({"sure": [8, 9, 10], "fast": [2, 3, None], "never": [None, None, None]}))
    assert said.startswith("`sure` reached 45 with every seed, after 9 s (median of 3 seeds, 8 to 10); ")
    assert "; `fast` was sooner, but with 2 of 3 seeds, after 3 s; " in said
    assert " first" not in said


def test_a_target_that_no_contestant_reached_with_every_seed_is_said_to_be_so() -> None:
    said = answer(timed({"alpha": [5, 6, None], "beta": [4, None, None]}))
    assert said.startswith(
        "No topology reached 45 with every seed; most often `alpha` did, with 2 of 3 seeds, after 6 s; "
    )
    assert "`beta` (1 of 3 seeds)" in said


def test_a_target_that_no_contestant_reached_is_answered_with_the_best_score() -> None:
    none = timed({"alpha": [None] * 3, "beta": [None] * 3})
    assert answer(none) == "No topology reached 45 within 20 s; all scored 20 (3 seeds); 3 seeds show no difference."
    said = answer(replace(final(CLEAR, target=475.0), budget="until 475, at most 20 s"))
    assert said.startswith(
        "No topology reached 475 within 20 s; the best, `gamma`, scored 52 (5 seeds, 50.3 to 53.7); "
    )
    own = replace(final(CLEAR, "report", target=475.0), budget="each run's own")
    assert answer(own).startswith("No contestant reached 475 within its budget; ")


def test_seeds_that_overlap_show_no_difference() -> None:
    said = answer(final({"alpha": [10.0, 20, 30, 40, 50], "beta": [11.0, 21, 31, 41, 51]}))
    assert said.endswith("; 5 seeds can't tell `beta` from `alpha` (30).")
    assert "ahead" not in said


def test_the_best_is_ahead_only_of_those_that_the_seeds_part_from_it() -> None:
    said = answer(final({**CLEAR, "delta": [49.0, 50.5, 52.5, 53.5, 54.5]}))
    assert said.endswith("; 5 seeds show `delta` ahead of `beta` and `alpha`, but not of `gamma`.")


def test_a_tie_is_called_a_tie() -> None:
    said = answer(final({"alpha": [500.0] * 5, "beta": [500.0] * 5, "gamma": [500.0] * 5}))
    assert said == "All three topologies scored 500 after 60 s (5 seeds); 5 seeds show no difference."
    assert answer(timed({"alpha": [3, 4, 5], "beta": [3, 4, 5]})).startswith("Both topologies reached 45, after 4 s")


def test_equals_at_the_top_are_named_together() -> None:
    said = answer(final({"alpha": [10.0], "beta": [500.0], "gamma": [500.0]}))
    assert said.startswith(
        "`beta` and `gamma` scored highest after 60 s, 500 (1 seed); next is `alpha` (10), but 1 seed"
    )


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_prove_little_and_no_contestant_is_called_ahead(seeds: int) -> None:
    results = final({name: values[:seeds] for name, values in CLEAR.items()})
    noun = "1 seed" if seeds == 1 else "2 seeds"
    assert answer(results).endswith(
        f"; next is `beta` ({number(30 + 0.5 * (seeds - 1))}), but {noun} can't show a difference."
    )
    assert f"{noun} prove{'s' if seeds == 1 else ''} very little" in remarks(results)
    assert "ahead" not in answer(results)
    assert not re.search(r"\S+ to \d", answer(results))


def test_three_seeds_part_no_scores_and_say_how_often_chance_does() -> None:
    results = final({name: values[:3] for name, values in CLEAR.items()})
    assert answer(results).endswith("51 (3 seeds, 50 to 52); 3 seeds can't tell `gamma` from `beta` (31) or any other.")
    assert "chance does the same one time in 10" in remarks(results)


def test_one_contestant_is_not_compared_with_any_other() -> None:
    said = answer(final({"alpha": [1.0, 2, 3, 4, 5]}))
    assert said.startswith("`alpha` scored 3 after 60 s (5 seeds, ")
    assert not any(word in said for word in ("highest", "ahead", "difference", ";"))
    assert answer(timed({"alpha": [3]})) == "`alpha` reached 45, after 3 s (1 seed)."


@pytest.mark.parametrize("kind", ["compare", "ablate", "scale", "report"])
def test_without_scores_there_is_no_answer_and_the_reason_is_given(kind: str) -> None:
    silent = replace(trial("alpha", 0, []), env_steps_per_s=None)
    assert answer(study([silent], kind)) == "There is no answer: no run has a score."
    assert answer(study([failed("alpha", 0, "boom")], kind)) == "There is no answer: every run failed."
    unfinished = "There is no answer yet: no run has finished."
    assert answer(study([], kind)) == answer(study([trial("alpha", 0, [], "missing")], kind)) == unfinished


def test_negative_scores_keep_their_sign_and_their_order() -> None:
    said = answer(final({"alpha": [-200.0, -199, -198, -197], "beta": [-110.0, -109, -108, -107]}))
    assert said.startswith("`beta` scored highest after 60 s, −108 (")


@pytest.mark.parametrize("kind", ["compare", "report"])
@pytest.mark.parametrize("target", [None, 40.0])
def test_swapping_two_results_swaps_what_is_said(kind: str, target: float | None) -> None:
    results = final(CLEAR, kind, target)
    other = answer(swapped(results, "alpha", "gamma"))
    assert other == renamed(answer(results), "alpha", "gamma") != answer(results)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-500, 500).map(lambda x: round(x, 3)), min_size=15, max_size=15, unique=True))
def test_swapping_any_two_results_swaps_the_names_and_nothing_else(scores: list[float]) -> None:
    results = final({"alpha": scores[:5], "beta": scores[5:10], "gamma": scores[10:]}, target=100.0)
    means = [sum(sorted(part)[1:4]) for part in (scores[:5], scores[5:10], scores[10:])]
    assume(len({round(mean, 6) for mean in means}) == 3)
    for said in (answer, remarks):
        assert said(swapped(results, "beta", "gamma")) == renamed(said(results), "beta", "gamma")


# The answer to the title: ablate and scale


def test_an_ablation_names_who_falls_behind_and_who_can_not_be_told() -> None:
    scores = {"all parts": CLEAR["gamma"], "no replay": CLEAR["alpha"], "no double": [49.0, 50.5, 52.5, 53.5, 54.5]}
    said = "5 seeds show `no replay` (12) behind `all parts` (52); one other can't be told from it."
    assert answer(final(scores, "ablate")) == said
    better = final({"all parts": CLEAR["beta"], "no replay": CLEAR["alpha"], "no double": CLEAR["gamma"]}, "ablate")
    assert (
        answer(better)
        == "5 seeds show `no replay` (12) behind `all parts` (32); `no double` (52) ahead of `all parts` (32)."
    )


def test_an_ablation_in_which_only_several_parts_matter_together_says_so() -> None:
    scores = {"all parts": CLEAR["gamma"], "no replay": CLEAR["gamma"], "neither": CLEAR["alpha"]}
    assert answer(final(scores, "ablate")) == (
        "No part switched off alone makes a difference that 5 seeds can show; they show `neither` (12) behind "
        "`all parts` (52)."
    )


def test_an_ablation_without_differences_and_one_with_few_seeds_claim_none() -> None:
    level = final({"all parts": CLEAR["beta"], "no replay": CLEAR["beta"]}, "ablate")
    assert answer(level).startswith("No part makes a difference that 5 seeds can show: `all parts` (32) can't be told")
    few = final({"all parts": [50.0], "no replay": [10.0], "no double": [30.0]}, "ablate")
    assert answer(few) == "Furthest from `all parts` (50) is `no replay` (10), but 1 seed can't show a difference."


def test_swapping_two_variants_of_an_ablation_swaps_what_each_is_worth() -> None:
    results = final({"full": CLEAR["gamma"], "alpha": CLEAR["alpha"], "beta": CLEAR["beta"]}, "ablate")
    assert answer(results) == "5 seeds show `alpha` (12) and `beta` (32) behind `full` (52)."
    assert answer(swapped(results, "alpha", "beta")) == renamed(answer(results), "alpha", "beta")


def test_scale_says_what_is_reached_of_the_ideal_and_where_it_stops_paying() -> None:
    said = answer(scaled())
    assert said.startswith("64 actors play 15.3 times as many env steps/s as 1 (1,450 against 95), 24 % of ideal; ")
    assert "it stops paying at 16, for the step to 32 adds" in said


def test_a_scale_that_pays_all_the_way_says_so() -> None:
    assert "every step up to 8 adds at least half" in answer(scaled((1, 2, 4, 8)))


def test_a_single_number_of_actors_is_answered_by_its_score() -> None:
    assert answer(scaled((4,))).startswith("`4 actors` scored 180")


@pytest.mark.parametrize("kind", ["compare", "ablate", "scale", "report"])
def test_every_kind_answers_a_large_study_in_one_sentence(kind: str) -> None:
    said = answer(grand(kind=kind))
    assert re.fullmatch(r"[^\n]{40,400}\.", said)
    assert ". " not in said


# Remarks


def test_target_says_who_reached_it_with_how_many_seeds() -> None:
    text = remarks(timed({"alpha": [2, 2, 2, 2], "beta": [None, 2, 2, 2], "gamma": [None] * 4}))
    assert (
        text == "The target of 45 was reached with all seeds by alpha; with some by beta (3 of 4); with none by gamma."
    )


def test_failed_contestants_are_named_with_their_cause() -> None:
    runs = [trial("alpha", seed, [1.0 + seed]) for seed in range(3)]
    runs += [failed("beta", 0, "ValueError: no lever\nTraceback"), failed("beta", 1, "ValueError: no lever")]
    text = remarks(study(runs))
    assert "Failed: beta, with 2 of 2 seeds: ValueError: no lever." in text
    assert "Traceback" not in text


def test_a_failure_without_a_cause_says_that_there_is_none() -> None:
    text = remarks(study([failed("alpha", 0, ""), failed("beta", 0, "MemoryError")]))
    assert "Failed: alpha, with 1 of 1 seeds: no cause was written down." in text


def test_scores_that_are_not_numbers_are_left_out_and_said_to_be() -> None:
    runs = [trial("alpha", seed, [5.0, math.nan]) for seed in range(2)] + [trial("beta", 0, [1.0, 2.0])]
    assert "Left out of the scores of alpha: two runs, not a finite number." in remarks(study(runs))
    assert "nan" not in remarks(study(runs)) + answer(study(runs))


def test_a_study_that_is_not_finished_says_so() -> None:
    runs = [*(trial("alpha", seed, [1.0]) for seed in range(2)), trial("alpha", 2, [], "missing")]
    assert "not finished: one run to go" in remarks(study(runs))


# Numbers


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (487.4, "487"),
        (12_345.6, "12,300"),
        (9.714, "9.71"),
        (-0.0421, "−0.0421"),
        (99.96, "100"),
        (999.9, "1,000"),
        (math.nan, "–"),
        (None, "–"),
        (math.inf, "∞"),
        (1e-9, "1e-09"),
        (500.0, "500"),
    ],
)
def test_numbers_have_three_figures(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_ticks_are_brief() -> None:
    values = [0, 0.5, 500, 1000, 2500, 30_000, 800_000, 1_250_000, -20_000]
    assert [brief(value) for value in values] == ["0", "0.5", "500", "1k", "2.5k", "30k", "800k", "1.25M", "−20k"]


def test_lists_are_read_aloud() -> None:
    assert [listed(names) for names in ((), ("a",), ("a", "b"), ("a", "b", "c"))] == ["", "a", "a and b", "a, b and c"]
