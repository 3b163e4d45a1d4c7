import pytest

from ir_core import BatchDependentPredicateError, PredicateError
from ir_core.inquiry import Inquiry


def predicate() -> bool:
    return True


def test_what_is_read_is_kept_and_returned() -> None:
    inquiry = Inquiry("op", "probe", predicate)
    assert inquiry.note("x", "sizes", "shape[1]", 8) == 8
    assert inquiry.reads == {("x", "sizes")}
    assert inquiry.facts == {"x.shape[1]": 8}


def test_the_first_refusal_is_kept_even_if_it_is_swallowed() -> None:
    inquiry = Inquiry("op", "probe", predicate)
    with pytest.raises(BatchDependentPredicateError, match="reads `x`, which depends"):
        inquiry.hide("`x`")
    with pytest.raises(PredicateError, match="`predicate` of provider `probe` for op `op` prints"):
        inquiry.refuse(PredicateError, "prints")
    assert isinstance(inquiry.refusal, BatchDependentPredicateError)
