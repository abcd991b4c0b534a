"""The plain words of a study: they follow the numbers, and claim no more than the seeds show."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from repertory.studies.numerals import listed, number
from repertory.studies.words import paragraph
from studies_made_up import failed, final, grand, scaled, study, swapped, trial

CLEAR = {"alpha": [10.0, 11, 12, 13, 14], "beta": [30.0, 31, 32, 33, 34], "gamma": [50.0, 51, 52, 53, 54]}


def renamed(text: str, one: str, other: str) -> str:
    """The text with two names exchanged."""
    names = {one: other, other: one}
    return re.sub(rf"\b({one}|{other})\b", lambda found: names[found[0]], text)


def of_scores(text: str) -> str:
    """Without what is said of speed."""
    return text.partition("The fastest play")[0]


@pytest.mark.parametrize("kind", ["compare", "report"])
def test_swapping_two_results_swaps_what_is_said(kind: str) -> None:
    findings = final(CLEAR, kind, target=40.0)
    assert "the highest final score is that of gamma" in paragraph(findings).lower()
    other = paragraph(swapped(findings, "alpha", "gamma"))
    assert "the highest final score is that of alpha" in other.lower()
    assert other == renamed(paragraph(findings), "alpha", "gamma") != paragraph(findings)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-500, 500).map(lambda x: round(x, 3)), min_size=15, max_size=15, unique=True))
def test_swapping_any_two_results_swaps_the_names_and_nothing_else(scores: list[float]) -> None:
    findings = final({"alpha": scores[:5], "beta": scores[5:10], "gamma": scores[10:]}, target=100.0)
    means = [sum(sorted(part)[1:4]) for part in (scores[:5], scores[5:10], scores[10:])]
    assume(len({round(mean, 6) for mean in means}) == 3)
    assert paragraph(swapped(findings, "beta", "gamma")) == renamed(paragraph(findings), "beta", "gamma")


def test_swapping_two_variants_of_an_ablation_swaps_what_each_is_worth() -> None:
    findings = final({"full": [50.0, 51, 52, 53, 54], **{k: v for k, v in CLEAR.items() if k != "gamma"}}, "ablate")
    text = paragraph(findings)
    assert "Below it, as 5 seeds show: alpha (12, 40 lower); beta (32, 20 lower)." in text
    assert paragraph(swapped(findings, "alpha", "beta")) == renamed(text, "alpha", "beta")


def test_seeds_that_overlap_show_no_difference() -> None:
    text = paragraph(final({"alpha": [10.0, 20, 30, 40, 50], "beta": [11.0, 21, 31, 41, 51]}))
    assert "no difference that 5 seeds can show" in text
    assert "ahead" not in of_scores(text)


def test_a_tie_is_called_a_tie() -> None:
    text = paragraph(final({"alpha": [500.0] * 5, "beta": [500.0] * 5}))
    assert "Final score: 500 for all, no difference that 5 seeds can show." in text
    assert "highest final score" not in text


def test_equals_at_the_top_are_named_together() -> None:
    text = paragraph(final({"alpha": [10.0], "beta": [500.0], "gamma": [500.0]}))
    assert "The highest final score is that of beta: 500, and of gamma." in text
    assert "; next is beta with 20." in paragraph(final({"alpha": [10.0], "beta": [20.0], "gamma": [500.0]}))


def test_the_best_is_ahead_only_of_those_that_the_seeds_part_from_it() -> None:
    text = paragraph(final({**CLEAR, "delta": [49.0, 50.5, 52.5, 53.5, 54.5]}))
    assert "ahead of beta and alpha; between it and gamma there is no difference that 5 seeds can show" in text


@pytest.mark.parametrize(("seeds", "said"), [(1, "1 seed proves very little"), (2, "2 seeds prove very little")])
def test_few_seeds_prove_little_and_nobody_is_called_ahead(seeds: int, said: str) -> None:
    text = paragraph(final({name: values[:seeds] for name, values in CLEAR.items()}))
    assert said in text
    assert "ahead" not in text
    assert not re.search(r"\(\S+ to \S+\)", text)


def test_three_seeds_part_no_scores_and_say_how_often_chance_does() -> None:
    text = paragraph(final({name: values[:3] for name, values in CLEAR.items()}))
    assert "is that of gamma: 51 (50 to 52); between it and the others there is no difference that 3 seeds" in text
    assert "chance does the same one time in 10" in text
    assert "ahead" not in of_scores(text)


def test_failed_contestants_are_named_with_their_cause() -> None:
    runs = [trial("alpha", seed, [1.0 + seed]) for seed in range(3)]
    runs += [failed("beta", 0, "ValueError: no lever\nTraceback"), failed("beta", 1, "ValueError: no lever")]
    text = paragraph(study(runs))
    assert "Failed: beta, with 2 of 2 seeds: ValueError: no lever." in text
    assert "Traceback" not in text


def test_only_failures_say_only_that() -> None:
    text = paragraph(study([failed("alpha", 0, ""), failed("beta", 0, "MemoryError")]))
    assert "No run has a score" in text
    assert "Failed: alpha, with 1 of 1 seeds: no cause was written down." in text


def test_one_contestant_is_not_compared_with_anybody() -> None:
    text = paragraph(final({"alpha": [1.0, 2, 3, 4, 5]}))
    assert "Final score of alpha: 3 (" in text
    for word in ("highest", "ahead", "difference"):
        assert word not in text


def test_no_evaluations_at_all() -> None:
    text = paragraph(study([trial("alpha", 0, []), trial("beta", 0, [])]))
    assert "No run has a score, so nothing can be said of how well they play." in text


def test_no_trials_and_no_contestants() -> None:
    assert "no finished runs" in paragraph(study([]))


def test_scores_that_are_not_numbers_are_left_out_and_said_to_be() -> None:
    runs = [trial("alpha", seed, [5.0, math.nan]) for seed in range(2)] + [trial("beta", 0, [1.0, 2.0])]
    text = paragraph(study(runs))
    assert "Left out of the scores of alpha: two runs, not a finite number." in text
    assert "nan" not in text


def test_negative_scores_keep_their_sign_and_their_order() -> None:
    text = paragraph(final({"alpha": [-200.0, -199, -198, -197], "beta": [-110.0, -109, -108, -107]}))
    assert "The highest final score is that of beta: −108" in text


def test_target_says_who_reached_it_with_how_many_seeds() -> None:
    runs = [trial("alpha", seed, [10, 50.0], "solved") for seed in range(4)]
    runs += [trial("beta", seed, [10, 50.0 if seed else 20.0]) for seed in range(4)]
    runs += [trial("gamma", seed, [10, 20.0]) for seed in range(4)]
    text = paragraph(study(runs, target=45.0))
    assert (
        "The target of 45 was reached with all seeds by alpha; with some by beta (3 of 4); with none by gamma." in text
    )


def test_a_study_that_is_not_finished_says_so() -> None:
    runs = [*(trial("alpha", seed, [1.0]) for seed in range(2)), trial("alpha", 2, [], "missing")]
    assert "not finished: one run to go" in paragraph(study(runs))


def test_scale_says_what_is_reached_of_the_ideal_and_where_it_stops_paying() -> None:
    text = paragraph(scaled())
    assert "One actor makes 95 env steps/s, 64 make" in text
    assert "of ideal" in text
    assert "it stops paying at 16, for the step to 32 adds" in text


def test_a_scale_that_pays_all_the_way_says_so() -> None:
    assert "every step up to 8 adds at least half" in paragraph(scaled((1, 2, 4, 8)))


@pytest.mark.parametrize("kind", ["compare", "ablate", "scale", "report"])
def test_every_kind_speaks_of_a_large_study_in_one_paragraph(kind: str) -> None:
    text = paragraph(grand(kind=kind))
    assert "\n" not in text
    assert "Failed: gorila, with 2 of 5 seeds" in text
    assert 200 < len(text) < 2500


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


def test_lists_are_read_aloud() -> None:
    assert [listed(names) for names in ((), ("a",), ("a", "b"), ("a", "b", "c"))] == ["", "a", "a and b", "a, b and c"]
