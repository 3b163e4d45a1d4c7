import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from ir_core.groups import CollectiveError
from serve_shim.errors import CompileCacheError
from serve_shim.ranks.channel import ChannelError
from serve_shim.ranks.rank_actor import Raised, RankActor, Value


class Raising:
    """The object on the rank: raises what it is given."""

    error: BaseException = ValueError("no such layer")

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.place = rank, num_ranks

    def raise_it(self) -> None:
        raise self.error

    def raise_from_it(self) -> None:
        raise RuntimeError("the step failed") from self.error

    def lock(self) -> Any:
        return threading.Lock()


@pytest.fixture
def actor() -> RankActor:
    made = RankActor(1, 2, "/nowhere", str(Path.cwd()))
    made._object = Raising(1, 2)
    return made


def _raised(actor: RankActor, method: str, error: BaseException | None = None) -> Raised:
    if error is not None:
        actor._object.error = error
    outcome = actor.call(method, pickle.dumps(()))
    assert isinstance(outcome, Raised)
    return outcome


def test_object_is_told_its_rank() -> None:
    actor = RankActor(1, 2, "/nowhere", str(Path.cwd()))
    assert isinstance(actor.construct("fractions:Fraction"), Value)
    assert actor._object.as_integer_ratio() == (1, 2)


def test_class_that_is_not_there_is_an_error_in_words() -> None:
    outcome = RankActor(0, 1, "/nowhere", str(Path.cwd())).construct("fractions:Faction")
    assert isinstance(outcome, Raised)
    assert outcome.type_name == "AttributeError"


def test_error_keeps_type_message_and_traceback(actor: RankActor) -> None:
    raised = _raised(actor, "raise_it")
    assert (raised.type_name, raised.message, raised.exit_code) == (
        "ValueError",
        "no such layer",
        5,
    )
    assert "in raise_it" in raised.trace


def test_own_error_keeps_its_exit_code(actor: RankActor) -> None:
    assert _raised(actor, "raise_it", CompileCacheError("no entry")).exit_code == 6


@pytest.mark.parametrize("error", [CollectiveError("rank 0 left"), ChannelError("broken")])
def test_loss_of_another_is_a_consequence(actor: RankActor, error: Exception) -> None:
    assert _raised(actor, "raise_it", error).is_consequence
    assert _raised(actor, "raise_from_it", error).is_consequence
    assert not _raised(actor, "raise_from_it", ValueError("no")).is_consequence


def test_exit_of_the_interpreter_is_an_error(actor: RankActor) -> None:
    assert _raised(actor, "raise_it", SystemExit(3)).type_name == "SystemExit"


def test_error_without_a_message_of_its_own_is_told(actor: RankActor) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise KeyError

    assert _raised(actor, "raise_it", MuteError()).message == "(its message raised KeyError)"


def test_result_that_cannot_be_pickled_is_an_error(actor: RankActor) -> None:
    assert "pickle" in _raised(actor, "lock").message
