import pytest

from serve_shim.ranks.ray_words import describe_end, first_words

_CRASH = "ActorDiedError: … Worker unexpectedly exits with a connection error code 2. End of file."
_SIGTERM = (
    "ActorDiedError: … Worker exits unexpectedly by a signal. SystemExit is raised (sys.exit is "
    "called). Exit code: 1. The process receives a SIGTERM."
)


@pytest.mark.parametrize(
    ("words", "seen", "told"),
    [
        (_CRASH, "killed by SIGKILL", "killed by SIGKILL"),
        (_CRASH, "exit code 3", "ended with exit code 3"),
        (_CRASH, "", "ended without a word, as by SIGKILL"),
        (_SIGTERM, "exit code 1", "killed by SIGTERM"),
        ("… Worker exits with an exit code 3.", "", "ended with exit code 3"),
        (
            "OutOfMemoryError: …",
            "killed by SIGKILL",
            "killed by Ray, since the node's memory was full",
        ),
    ],
)
def test_end_is_told_by_who_knows_best(words: str, seen: str, told: str) -> None:
    assert describe_end(words, seen) == told


def test_guesses_of_ray_are_left_out() -> None:
    error = RuntimeError("End of file. Some common causes include: (1) the weather")
    assert first_words(error) == "End of file."
