"""The checks of the conformance suite, as data: when each applies and how often it runs."""

from collections.abc import Callable
from dataclasses import dataclass

from ir_core.testing.case import Case
from ir_core.testing.checks import batch, functional, layouts, numerics, torch_contract
from ir_core.weight_layouts import PLAIN


@dataclass(frozen=True, slots=True)
class Check:
    """One check: raises ConformanceError to fail, CheckDeclined with a reason not to be made.

    `applies` says for which cases it is made. With `num_dtypes` it costs a compilation or is
    independent of the arguments: it is made on one case of several tokens in each of the first so
    many dtypes that the implementation accepts.
    """

    name: str
    run: Callable[[Case], None]
    applies: Callable[[Case], bool]
    num_dtypes: int | None = None


def _always(case: Case) -> bool:
    return True


def _has_odd_values(case: Case) -> bool:
    # They lie in the activations of all rows but one.
    return case.has_several_tokens and bool(case.op.activations)


def _has_inferred_fake(case: Case) -> bool:
    # A fake of its own is where an op says that its outputs have another dtype.
    return case.op.fake is None and bool(case.op.activations)


def _has_maybe_inplace(case: Case) -> bool:
    return case.op.allow_inplace


def _has_16_bit_limit(case: Case) -> bool:
    return (
        case.workload.max_differing is not None
        and case.dtype.itemsize == 2
        and case.provider != "native"
    )


def _is_packed(case: Case) -> bool:
    return case.layout != PLAIN


def _claims_batch_invariance(case: Case) -> bool:
    # The check chooses its own number of rows, so workloads of one row or none repeat another.
    return case.implementation.batch_invariant and case.has_several_tokens


CHECKS = (
    Check("matches-native", numerics.matches_native, _always),
    Check("rounds-like-native", numerics.rounds_like_native, _has_16_bit_limit),
    Check("passes-on-non-finite", numerics.passes_on_non_finite, _has_odd_values),
    Check("packs-and-unpacks", layouts.packs_and_unpacks, _is_packed),
    Check("native-reads-it-packed", layouts.native_reads_it_packed, _is_packed),
    Check("keeps-its-inputs", functional.keeps_its_inputs, _always),
    Check("gives-fresh-outputs", functional.gives_fresh_outputs, _always),
    Check("gives-the-activation-dtype", functional.gives_the_activation_dtype, _has_inferred_fake),
    Check("donates-without-a-trace", functional.donates_without_a_trace, _has_maybe_inplace),
    Check("runs-as-itself", functional.runs_as_itself, _always),
    Check("binds-every-call-form", functional.binds_every_call_form, _always, num_dtypes=1),
    Check("reads-strides", functional.reads_strides, _always),
    Check("agrees-with-fake", torch_contract.agrees_with_fake, _always),
    Check("has-native-schema", torch_contract.has_native_schema, _always, num_dtypes=1),
    Check("passes-opcheck", torch_contract.passes_opcheck, _always, num_dtypes=1),
    Check("compiles-to-the-same", torch_contract.compiles_to_the_same, _always, num_dtypes=2),
    Check("selects-by-static-facts", batch.selects_the_same_for_every_batch, _always),
    Check("keeps-rows-apart", batch.keeps_rows_apart, _claims_batch_invariance),
    Check("keeps-threads-apart", batch.keeps_threads_apart, _claims_batch_invariance),
)
