"""What can go wrong when a function runs on several ranks.

RankSessionError    Ray or the ranks could not be started, or the session ended
RankError           the function failed on a rank: it raised, its process ended, or time was up
"""


class RankSessionError(Exception):
    """No rank ran the function: the session could not start them, or it is closed."""


class RankError(Exception):
    """The function failed on a rank; the message has every failed rank's traceback or stack.

    Attributes:
        rank: the one that failed first.
    """

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank
