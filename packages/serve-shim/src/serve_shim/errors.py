"""All errors that serve-shim raises on purpose, and the exit code each ends the process with.

ServeShimError
├── SettingsError            2  a flag, variable or file that cannot be understood
│   └── WrongSettingError    2  the same, with each wrong setting and its source (`settings`)
├── AddressInUseError        2  the port or socket is taken
├── ModelLoadError           3  a checkpoint that is missing, malformed or of an unknown family
│   └── TokenizerError       3  its tokenizer or chat template
├── CompileCacheError        6  the compile cache: nothing fits under `require`, or it is not sound
├── EngineDeadError          5  the step loop ended; every request in flight has failed
├── RanksError               7  the ranks cannot start: no Ray, an open one, or too little of it
├── RankFailedError          5  a rank failed, or what holds the ranks; on a rank, that error's code
├── GenerationError          -  one request failed, through no fault of its own; the engine goes on
└── RequestError             -  one request is wrong; the engine goes on
    ├── SamplingParamsError  -  a sampling parameter out of range
    ├── TemplateError        -  the chat template refused these messages
    ├── OverloadedError      -  the queue is full, try again later
    └── UnavailableError     -  not ready yet, or draining
"""


class ServeShimError(Exception):
    """Base of all errors raised on purpose; `exit_code` is the process's when it ends a start."""

    exit_code = 1


class SettingsError(ServeShimError):
    """A setting that cannot be understood; the message names source, path and value."""

    exit_code = 2


class AddressInUseError(ServeShimError):
    """The address to listen on is already taken."""

    exit_code = 2


class ModelLoadError(ServeShimError):
    """A checkpoint that is missing, malformed, or of a family that is not supported."""

    exit_code = 3


class TokenizerError(ModelLoadError):
    """A tokenizer or chat template that cannot be read."""


class EngineDeadError(ServeShimError):
    """The engine's step loop ended; requests in flight have failed with this cause."""

    exit_code = 5


class CompileCacheError(ServeShimError):
    """The compile cache has nothing that fits where a miss is forbidden, or cannot be trusted.

    The message has every reason, one a line; `reasons` has those of a miss.
    """

    exit_code = 6

    def __init__(self, message: str, *, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class RanksError(ServeShimError):
    """The ranks cannot start; the message has the reason, and figures where Ray lacks resources."""

    exit_code = 7


class RankFailedError(ServeShimError):
    """A rank has failed, and all with it; the message is the root cause in one line.

    `rank` is -1 where it is no rank that failed: Ray, or the supervisor of the ranks. `phase` is
    what the ranks were doing. `exit_code` is that of the error raised on the rank, else 5.
    """

    exit_code = 5

    def __init__(self, message: str, *, rank: int, phase: str, exit_code: int = 5) -> None:
        super().__init__(message)
        self.rank = rank
        self.phase = phase
        self.exit_code = exit_code


class GenerationError(ServeShimError):
    """One request failed while it was served, for example on logits that are NaN."""


class RequestError(ServeShimError):
    """One request is wrong; it alone fails.

    `param` names the offending field, `code` is the machine-readable reason
    (for example `context_length_exceeded`), both None where there is none.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class SamplingParamsError(RequestError):
    """A sampling parameter of the wrong type or out of its range."""


class TemplateError(RequestError):
    """The chat template is absent, refused the messages, or exceeded its limits."""


class OverloadedError(RequestError):
    """The queue is full; `retry_after_s` is a hint in seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message, code="server_overloaded")
        self.retry_after_s = retry_after_s


class UnavailableError(RequestError):
    """The server is starting or draining; `retry_after_s` is a hint in seconds."""

    def __init__(self, message: str, *, code: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s
