"""What Ray says of an actor that is no more, without its paragraphs of guesses."""

import re

from ray.exceptions import OutOfMemoryError

_SIGNAL = re.compile(r"receives a (SIG\w+)")
_EXIT_CODE = re.compile(r"exit code:? (\d+)", re.IGNORECASE)


def first_words(error: BaseException) -> str:
    """The facts of an error of Ray's."""
    return str(error).partition(" Some common causes")[0].strip()


def describe_end(words: str, seen: str) -> str:
    """How a rank's process ended, by Ray's words and by what was `seen` of it here, if anything.

    Ray's worker turns SIGTERM into an exit code; of what it cannot catch it knows nothing.
    """
    if OutOfMemoryError.__name__ in words:
        return "killed by Ray, since the node's memory was full"
    if match := _SIGNAL.search(words):
        return f"killed by {match[1]}"
    if seen:
        return seen if seen.startswith("killed") else f"ended with {seen}"
    if match := _EXIT_CODE.search(words):
        return f"ended with exit code {match[1]}"
    return "ended without a word, as by SIGKILL"
