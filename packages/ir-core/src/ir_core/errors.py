"""All errors that ir-core raises on purpose; their messages name op, provider and what to do.

IrError
├── RegistrationError                 an op or implementation that cannot be registered as written
│   ├── SchemaMismatchError           a signature that differs from native's
│   └── DuplicateRegistrationError    a name that is taken; names both places
├── UnknownNameError                  a name nobody registered; lists the valid ones
│   ├── UnknownOpError
│   └── UnknownProviderError
├── PriorityError                     an empty, duplicate or malformed priority list
├── ArgumentError                     a call whose arguments do not fit the op's schema
├── LayoutError                       a weight layout that is no permutation of the weights
├── GradientError                     an input that requires grad while grad mode is on
├── PredicateError                    a `supports_args` that did what a predicate may not do
│   └── BatchDependentPredicateError  it read a token dim
├── NoImplementationError             every provider was rejected; lists every reason
├── DonationError                     a tensor used after it was donated, or donated twice
├── PluginError                       an entry point that is broken, unknown or declared twice
├── TuningTimeError                   the time that tuning may take is up
├── RowRangeError                     a call whose rows lie in several ranges of a tuned choice
└── SwitchError                       an environment variable whose value means nothing
"""


class IrError(Exception):
    """Base of all errors that ir-core raises on purpose."""


class RegistrationError(IrError):
    """An op or an implementation cannot be registered as written."""


class SchemaMismatchError(RegistrationError):
    """A signature differs from native's in a name, type, default or return."""


class DuplicateRegistrationError(RegistrationError):
    """An op or a provider of an op is registered twice, from two places."""


class UnknownNameError(IrError, KeyError):
    """A name that nobody registered."""

    def __str__(self) -> str:
        # KeyError shows the repr of a key; this is a sentence.
        return Exception.__str__(self)


class UnknownOpError(UnknownNameError):
    """No op has this name."""


class UnknownProviderError(UnknownNameError):
    """The op has no implementation by this provider."""


class PriorityError(IrError):
    """A priority list is empty, repeats a provider or is not a list of names."""


class ArgumentError(IrError, TypeError):
    """The arguments of a call do not fit the op's schema."""


class LayoutError(IrError):
    """A layout's `pack` or `unpack` returned something else than the weights, permuted."""


class GradientError(IrError):
    """An input requires grad while grad mode is on; IR ops are for inference."""


class PredicateError(IrError):
    """A `supports_args` predicate raised, or did what a predicate may not do."""


class BatchDependentPredicateError(PredicateError):
    """A predicate read a token dim, so its answer could differ from batch to batch."""


class NoImplementationError(IrError):
    """Every implementation was rejected; the message lists each provider's reason."""


class DonationError(IrError):
    """A tensor was used after `maybe_inplace` took it, or was donated twice."""


class PluginError(IrError):
    """An entry point cannot be loaded, is declared twice, or is unknown."""


class TuningTimeError(IrError):
    """The time that tuning may take is up; what is left keeps its priority until another start."""


class RowRangeError(IrError):
    """Timing chose by the number of rows, and a traced call has no one number; names the ranges."""


class SwitchError(IrError):
    """An environment variable has a value that means nothing."""
