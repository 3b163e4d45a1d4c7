import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_shim.engine.stop_matcher import StopMatcher


def feed(pieces: list[str], *stops: str, include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, include_stop=include)
    shown: list[str] = []
    for piece in pieces:
        shown.append(matcher.push(piece))
        if matcher.matched is not None:
            return shown, matcher.matched
    return [*shown, matcher.flush()], None


def test_match_across_pieces_is_cut_off() -> None:
    assert feed(["Hello wo", "rl", "d!"], "world") == (["Hello ", "", ""], "world")


def test_match_is_kept_when_asked_for_but_nothing_after_it() -> None:
    assert feed(["a wor", "ld and more"], "world", include=True) == (["a ", "world"], "world")


def test_only_the_possible_beginning_is_held_back() -> None:
    assert feed(["xxab", "abc"], "abd") == (["xx", "ababc", ""], None)


def test_held_text_is_shown_once_it_cannot_match() -> None:
    assert feed(["ab", "x", "ab"], "abc") == (["", "abx", "", "ab"], None)


def test_overlapping_beginnings_are_found() -> None:
    assert feed(["aab", "aac"], "aabaac") == (["", ""], "aabaac")
    assert feed(["aaa", "b"], "aab") == (["a", ""], "aab")


def test_stop_that_ends_first_wins_and_the_longest_of_those() -> None:
    assert feed(["xabcd"], "abcd", "bc") == (["xa"], "bc")
    assert feed(["xabc"], "c", "abc") == (["x"], "abc")


def test_suppressed_match_is_passed_over_but_may_have_begun() -> None:
    matcher = StopMatcher(("end",), include_stop=False)
    assert matcher.push("an end, e", may_match=False) == "an end, "
    assert matcher.matched is None
    assert matcher.push("nd", may_match=True) == ""
    assert matcher.matched == "end"


def test_match_that_ended_while_suppressed_does_not_count_later() -> None:
    matcher = StopMatcher(("b", "abc"), include_stop=False)
    assert matcher.push("ab", may_match=False) == ""
    assert matcher.push("x", may_match=True) == "abx"
    assert matcher.matched is None


ALPHABET = st.text("abc", max_size=12)


@given(
    st.lists(ALPHABET, max_size=6),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
)
def test_outcome_does_not_depend_on_how_the_text_is_cut(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    by_letter, matched = feed(list("".join(pieces)), *stops, include=include)
    by_piece, matched_too = feed(pieces, *stops, include=include)
    assert ("".join(by_piece), matched_too) == ("".join(by_letter), matched)


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_outcome_is_that_of_a_search_by_hand(text: str, stops: list[str]) -> None:
    ends = [
        (end, -len(s), s)
        for s in stops
        for end in range(1, len(text) + 1)
        if text[:end].endswith(s)
    ]
    shown, matched = feed(list(text), *stops)
    if ends:
        end, _, stop = min(ends)
        assert ("".join(shown), matched) == (text[: end - len(stop)], stop)
    else:
        assert ("".join(shown), matched) == (text, None)


@pytest.mark.parametrize("piece", ["", "a"])
def test_matcher_without_stops_in_sight_shows_everything(piece: str) -> None:
    assert feed([piece], "zz") == ([piece, ""], None)
