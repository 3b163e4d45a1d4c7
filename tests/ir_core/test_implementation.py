import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_core import (
    DuplicateRegistrationError,
    IrOp,
    RegistrationError,
    Registry,
    SchemaMismatchError,
)
from ir_core.implementation import Support


def correct(x: Tensor, weight: Tensor | None, factor: float, width: int | None = None) -> Tensor:
    return x


def renamed(x: Tensor, w: Tensor | None, factor: float, width: int | None = None) -> Tensor:
    return x


def shorter(x: Tensor, weight: Tensor | None, factor: float) -> Tensor:
    return x


def retyped(x: Tensor, weight: Tensor, factor: float, width: int | None = None) -> Tensor:
    return x


def redefaulted(x: Tensor, weight: Tensor | None, factor: float, width: int | None = 2) -> Tensor:
    return x


def returning(
    x: Tensor, weight: Tensor | None, factor: float, width: int | None = None
) -> tuple[Tensor, Tensor]:
    return x, x


def untyped(x, weight, factor, width=None):  # type: ignore[no-untyped-def]
    return x


def keyword_only(
    x: Tensor, weight: Tensor | None, factor: float, *, width: int | None = None
) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (renamed, r"parameters are \['x', 'w', 'factor', 'width'\]"),
        (shorter, r"parameters are \['x', 'weight', 'factor'\]"),
        (retyped, r"`weight` is Tensor, not Tensor\?"),
        (redefaulted, "`width` defaults to 2, not defaults to None"),
        (returning, "returns are"),
        (untyped, r"\['x', 'weight', 'factor', 'width'\] have no type"),
    ],
)
def test_a_signature_that_differs_from_native_is_refused(
    scale: IrOp, function: Any, words: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=words) as caught:
        scale.register_impl("probe")(function)
    message = str(caught.value)
    assert "Implementation `probe` of `scale`" in message
    assert f"{__file__}:{function.__code__.co_firstlineno}" in message
    assert "It must be scale(Tensor x, Tensor? weight, float factor" in message
    assert list(scale.implementations) == ["native"]


def test_keyword_only_parameters_are_refused(scale: IrOp) -> None:
    with pytest.raises(RegistrationError, match="`width` of `keyword_only` is keyword-only"):
        scale.register_impl("probe")(keyword_only)


def predicate_names(x: Any, weight: Any, eps: Any, width: Any = None) -> bool:
    return True


def predicate_default(x: Any, weight: Any, factor: Any, width: Any = 0) -> bool:
    return True


def predicate_keyword(x: Any, weight: Any, factor: Any, *, width: Any = None) -> bool:
    return True


def predicate_variadic(*args: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("predicate", "words"),
    [
        (predicate_names, r"must take \['x', 'weight', 'factor', 'width'\]"),
        (predicate_default, "the default of `width` differs from native's"),
        (predicate_keyword, "keyword-only"),
        (predicate_variadic, "variadic"),
        (True, "is True, not a function"),
    ],
)
def test_a_predicate_has_natives_names_and_defaults(
    scale: IrOp, predicate: Any, words: str
) -> None:
    with pytest.raises(RegistrationError, match=words):
        scale.register_impl("probe", supports_args=predicate)


@pytest.mark.parametrize(
    ("provider", "options", "words"),
    [
        ("native", {}, "`native` .* is reserved"),
        ("default", {}, "is reserved"),
        ("unfused", {}, "is reserved"),
        ("Vendor", {}, "Provider name `Vendor` is malformed"),
        ("a-b", {}, "Provider name `a-b` is malformed"),
        ("probe", {"inplace": True}, "not declared with `allow_inplace=True`"),
    ],
)
def test_a_registration_that_cannot_be_is_refused_before_it_decorates(
    scale: IrOp, provider: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RegistrationError, match=words):
        scale.register_impl(provider, **options)


def test_the_decorator_returns_the_facts(scale: IrOp) -> None:
    implementation = scale.register_impl(
        "probe", opaque=True, batch_invariant=True, libraries=["a.so"]
    )(correct)
    assert scale.implementations["probe"] is implementation
    assert implementation.op is scale
    assert (implementation.provider, implementation.fn) == ("probe", correct)
    assert (implementation.opaque, implementation.batch_invariant) == (True, True)
    assert not implementation.inplace
    assert implementation.location == f"{__file__}:{correct.__code__.co_firstlineno}"
    assert implementation.origin == __name__.partition(".")[0]
    assert [str(each) for each in implementation.libraries] == ["a.so"]
    x = torch.ones(2)
    assert implementation(x, None, factor=1.0) is x


def test_one_provider_from_two_places_is_an_error_that_names_both(scale: IrOp) -> None:
    def elsewhere(
        x: Tensor, weight: Tensor | None, factor: float, width: int | None = None
    ) -> Tensor:
        return x

    scale.register_impl("probe")(correct)
    with pytest.raises(DuplicateRegistrationError) as caught:
        scale.register_impl("probe")(elsewhere)
    for function in (correct, elsewhere):
        assert f"{__file__}:{function.__code__.co_firstlineno}" in str(caught.value)
    assert scale.implementations["probe"].fn is correct


def test_the_same_implementation_again_is_fine(scale: IrOp) -> None:
    scale.register_impl("probe")(correct)
    again = scale.register_impl("probe")(correct)
    assert scale.implementations["probe"] is again


def test_partials_and_wrapped_functions_are_accepted(scale: IrOp) -> None:
    @functools.wraps(correct)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return correct(*args, **kwargs)

    scale.register_impl("partial")(functools.partial(correct))
    scale.register_impl("wrapped")(wrapped)
    locations = {scale.implementations[each].location for each in ("partial", "wrapped")}
    assert locations == {f"{__file__}:{correct.__code__.co_firstlineno}"}


@pytest.mark.parametrize(
    ("declared", "answer"),
    [
        (True, (True, "")),
        (False, (False, "declared as unsupported on this machine")),
        ((True, "never shown"), (True, "")),
        ((False, "no GPU"), (False, "no GPU")),
        (lambda: (False, "no library"), (False, "no library")),
        (lambda: True, (True, "")),
        (lambda: 1, (False, "its `supported` is 1, neither a bool nor (bool, reason)")),
        (lambda: None, (False, "its `supported` is None, neither a bool nor (bool, reason)")),
    ],
)
def test_support_may_be_declared_in_several_forms(declared: Any, answer: Any) -> None:
    assert Support(declared).answer() == answer


def test_support_is_asked_once_and_only_when_needed(scale: IrOp) -> None:
    asked: list[int] = []

    def check() -> tuple[bool, str]:
        asked.append(1)
        return False, "asked"

    implementation = scale.register_impl("lazy", supported=check)(correct)
    assert asked == []
    assert not implementation.supported
    assert implementation.unsupported_reason == "asked"
    assert scale.supported_providers() == ("native",)
    assert asked == [1]


def test_a_broken_optional_dependency_is_a_reason_and_no_crash(scale: IrOp) -> None:
    def check() -> bool:
        raise OSError("libaiter.so: cannot open shared object file")

    scale.register_impl("aiter", supported=check)(correct)
    scale.registry.priorities.set({"scale": "aiter"})
    selection = scale.select(torch.ones(1), None, 1.0)
    assert selection.provider == "native"
    assert "raised OSError: libaiter.so" in selection.rejections[0].reason


def test_a_predicate_over_a_list_of_tensors_is_refused(registry: Registry) -> None:
    @registry.register_op
    def join(tensors: list[Tensor]) -> Tensor:
        return torch.cat(tensors)

    with pytest.raises(RegistrationError, match=r"`join` cannot be asked: \['tensors'\] hold"):
        join.register_impl("probe", supports_args=lambda tensors: True)
    join.register_impl("anything")(join.native.fn)
    assert join.select([torch.ones(1)]).provider == "native"


@pytest.mark.parametrize(
    ("layouts", "words"),
    [
        (
            ("upside_dwn",),
            r"names `upside_dwn`, which is not registered; did you mean `upside_down`",
        ),
        ((), r"`layouts` of provider `fast` for `project` is \(\); name each layout"),
        (("plain", "plain"), "name each layout that it reads once"),
        ("plain", "in a tuple"),
    ],
)
def test_layouts_that_are_not_the_ops_are_refused(
    project: IrOp, add_project: Callable[..., None], layouts: Any, words: str
) -> None:
    with pytest.raises(RegistrationError, match=words):
        add_project("fast", layouts=layouts)
    assert "fast" not in project.implementations


def test_an_implementation_reads_plain_weights_unless_it_says_otherwise(
    project: IrOp, add_project: Callable[..., None]
) -> None:
    add_project("unpacked")
    add_project("packed", layouts=("upside_down", "plain"))
    assert project.implementations["unpacked"].layouts == ("plain",)
    assert project.implementations["packed"].layouts == ("upside_down", "plain")
