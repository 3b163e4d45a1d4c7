import pytest

from serve_shim.engine.admission import Admission
from serve_shim.errors import RequestError
from serve_shim.sampling.params import SamplingParams

LIMITS = Admission(vocab_size=100, max_model_len=32, max_sequences=10, has_tokenizer=False)


def refusal(prompt: object, **params: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        LIMITS.validate(prompt, SamplingParams(**params))  # pyright: ignore[reportArgumentType]
    return caught.value


def test_empty_prompt_is_refused() -> None:
    error = refusal([])
    assert (error.param, error.code) == ("prompt", "empty_prompt")


@pytest.mark.parametrize("bad", [-1, 100, 2**40, 2**63, 2**70, -(2**80)])
def test_id_outside_the_vocabulary_is_refused(bad: int) -> None:
    error = refusal([5, bad, 7])
    assert (error.param, error.code) == ("prompt", "invalid_token_id")
    assert len(error.message) < 200


@pytest.mark.parametrize("bad", [[1.0, 2.0], ["a"], [[1, 2]], [None]])
def test_prompt_of_other_things_than_ids_is_refused(bad: object) -> None:
    assert refusal(bad).code == "invalid_token_id"


@pytest.mark.parametrize(
    ("length", "max_tokens"), [(30, 3), (32, 1), (32, None), (33, 0), (500, 1)]
)
def test_too_long_request_is_refused_with_both_numbers(length: int, max_tokens: int | None) -> None:
    error = refusal([1] * length, max_tokens=max_tokens)
    assert error.code == "context_length_exceeded"
    assert "32" in error.message
    assert str(length) in error.message


@pytest.mark.parametrize(("length", "max_tokens"), [(31, 1), (32, 0), (1, 31), (31, None)])
def test_request_that_just_fits_is_admitted(length: int, max_tokens: int | None) -> None:
    LIMITS.validate([1] * length, SamplingParams(max_tokens=max_tokens))


def test_huge_minimum_without_a_maximum_is_refused() -> None:
    assert refusal([1], max_tokens=None, min_tokens=2**62).code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", (100,)),
        ("logit_bias", {100: 1.0}),
        ("logprobs", 101),
        ("prompt_logprobs", 101),
        ("n", 11),
        ("stop", ("x",)),
    ],
)
def test_parameter_that_the_engine_cannot_honour_is_refused(field: str, value: object) -> None:
    error = refusal([1], **{field: value})
    assert error.param == field
    assert f"`{field}`" in error.message


def test_maximum_is_cut_to_the_room_that_is_left() -> None:
    assert LIMITS.max_tokens(30, SamplingParams(max_tokens=None)) == 2
    assert LIMITS.max_tokens(5, SamplingParams(max_tokens=9)) == 9
