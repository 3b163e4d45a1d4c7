"""All errors that ir-passes raises on purpose; their messages name the pass, the node and the line.

PassesError
├── PipelineError       a pipeline that cannot be put together: unknown, repeated or misplaced names
├── PassError           a pass that failed, or that did not do what it reported
├── VerificationError   a graph that is not in the dialect; lists everything that is wrong
├── PatternError        a pattern or a replacement that no graph could ever fit
├── TraceError          a model that cannot be turned into a functional graph
├── LoweringError       an IR op that cannot become an implementation, or a broken contract
├── SplitError          a graph that cannot be cut at its splitting ops
├── BackendError        a compiler of pieces that is not there, or that failed on a piece
├── CompileError        a model, sizes or arguments that the compiled program cannot serve
├── CaptureError        a program that cannot be captured as a graph, or a replay on other memory
├── CannotStoreError    compiled code, or what it rests on, that the compile cache cannot represent
└── CacheError          the compile cache
    ├── CacheMissError      nothing stored fits, where a miss is not allowed
    ├── CorruptEntryError   an entry that is not what its manifest says
    ├── UnreadableEntryError an entry that cannot be read now, and may be sound
    ├── UntrustedEntryError an entry, a directory or a key that others could have written
    └── BundleError         a bundle that is malformed, expired, or signed by nobody known

Misused donations are `ir_core.DonationError` and broken plug-ins `ir_core.PluginError`, as in eager
mode.
"""


class PassesError(Exception):
    """Base of all errors that ir-passes raises on purpose."""


class PipelineError(PassesError):
    """A pipeline names a pass that is not there, twice, or in an impossible place."""


class PassError(PassesError):
    """A pass failed or misreported; names it and the passes that had already run."""


class VerificationError(PassesError):
    """A graph is not in the dialect; the message has one line for each problem."""


class PatternError(PassesError):
    """A pattern or a replacement does not fit the schema of an op that it calls."""


class TraceError(PassesError):
    """A model cannot be turned into a functional graph of ATen and IR ops."""


class LoweringError(PassesError):
    """An IR op has no implementation that fits; names the op, the provider and the line."""


class SplitError(PassesError):
    """A graph cannot be cut into pieces; names the value that cannot cross."""


class BackendError(PassesError):
    """A backend is unknown or failed; names it and the piece."""


class CompileError(PassesError):
    """A model cannot be compiled for the sizes asked for, or is called beyond them."""


class CaptureError(PassesError):
    """A program cannot be captured for a size, or an input of its graph moved; names which."""


class CannotStoreError(PassesError):
    """Something cannot be stored and found again safely; the message is the reason."""


class CacheError(PassesError):
    """Base of what is wrong with the compile cache."""


class CacheMissError(CacheError):
    """Nothing stored fits, and the mode forbids to compile; says which factor differs."""


class CorruptEntryError(CacheError):
    """An entry is not what its manifest says: truncated, changed, or incomplete."""


class UnreadableEntryError(CacheError):
    """An entry cannot be read now, as the system says why; it may be sound."""


class UntrustedEntryError(CacheError):
    """Others could have written it; says which file, and the command that settles it."""


class BundleError(CacheError):
    """A bundle cannot be taken in; says which rule it breaks and what to do."""
