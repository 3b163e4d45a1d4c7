"""All errors that ir-passes raises on purpose; their messages name the pass, the node and the line.

PassesError
├── PipelineError       a pipeline that cannot be put together: unknown, repeated or misplaced names
├── PassError           a pass that failed, or that did not do what it reported
├── VerificationError   a graph that is not in the dialect; lists everything that is wrong
├── PatternError        a pattern or a replacement that no graph could ever fit
└── TraceError          a model that cannot be turned into a functional graph

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
