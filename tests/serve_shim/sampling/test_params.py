import math

import pytest

from serve_shim.errors import SamplingParamsError
from serve_shim.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", True),
        ("n", 2**63),
        ("n", "2"),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", True),
        ("temperature", None),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-40),
        ("repetition_penalty", 0.0099),
        ("repetition_penalty", math.inf),
        ("seed", 2**64),
        ("seed", 1.0),
        ("stop", ("",)),
        ("stop", ""),
        ("stop", (1,)),
        ("stop", 5),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", "12"),
        ("stop_token_ids", (1.0,)),
        ("stop_token_ids", (2**63,)),
        ("min_tokens", -1),
        ("max_tokens", -1),
        ("max_tokens", False),
        ("logprobs", -1),
        ("prompt_logprobs", -1),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", [1]),
        ("ignore_eos", 1),
        ("include_stop_str_in_output", None),
        ("skip_special_tokens", "yes"),
    ],
)
def test_params_refuse_a_value_and_name_its_field(name: str, value: object) -> None:
    with pytest.raises(SamplingParamsError) as caught:
        SamplingParams(**{name: value})  # pyright: ignore[reportArgumentType]
    assert caught.value.param == name
    assert f"`{name}`" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("top_p", 1),
        ("top_k", -1),
        ("min_p", 1.0),
        ("seed", -(2**63)),
        ("seed", 2**64 - 1),
        ("max_tokens", None),
        ("max_tokens", 0),
        ("logprobs", 0),
        ("repetition_penalty", 0.01),
    ],
)
def test_params_accept_the_ends_of_their_ranges(name: str, value: object) -> None:
    params = SamplingParams(**{name: value})  # pyright: ignore[reportArgumentType]
    assert getattr(params, name) == value


def test_params_refuse_a_minimum_above_the_maximum() -> None:
    with pytest.raises(SamplingParamsError, match="exceeds") as caught:
        SamplingParams(min_tokens=5, max_tokens=4)
    assert caught.value.param == "min_tokens"
    assert SamplingParams(min_tokens=5, max_tokens=None).min_tokens == 5


def test_params_turn_sequences_into_tuples() -> None:
    params = SamplingParams(stop="a", stop_token_ids=[3], logit_bias={3: 1})  # pyright: ignore[reportArgumentType]
    assert params.stop == params.stop_strings == ("a",)
    assert params.stop_token_ids == (3,)
    assert params.logit_bias == {3: 1.0}
    assert SamplingParams(logit_bias={}).logit_bias is None


def test_params_are_greedy_below_the_smallest_usable_temperature() -> None:
    assert SamplingParams(temperature=0.0).is_greedy
    assert SamplingParams(temperature=9e-6).is_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy
