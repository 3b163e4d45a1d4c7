"""A compiled call overwrites only what it was given, and copies nothing without need.

The kernels of these tests work in place, so whatever is overwritten too early gives wrong values.
"""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir_core as ir
from ir_passes.tracing.whole_graph import trace_function

from .compiled import compile_whole, lower_whole
from .compiled_calls import IN_PLACE, NATIVE, TOKENS, Calls, compile_call, rows
from .graphs import FakeInputs, calls, node_calling, random_tensors, trace
from .kernel_toy import Kernels
from .test_model_trace import DIMS, Model, arguments

ROWS = ("T", 8)
FUSED = ir.ops.fused_add_rms_norm
BACKENDS = ("eager", "aot_eager", "inductor")


def native(function: Callable[..., Any], *inputs: Any) -> Any:
    """What a function means: its result with the definitions of all ops."""
    with ir.priority(NATIVE), torch.no_grad():
        return function(*inputs)


class Deep(nn.Module):
    """Layers whose residual is their input's own memory at first; it returns all that they hold."""

    def __init__(self, num_layers: int = 12) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.norm = nn.Buffer(1 + torch.randn(8, generator=generator) / 4)
        self.matrices = nn.Buffer(torch.randn(num_layers, 8, 8, generator=generator) / 3)

    def forward(self, x: Tensor) -> list[Tensor]:
        states: list[Tensor] = []
        residual = x
        for matrix in self.matrices.unbind():
            x, residual = FUSED(x, residual, self.norm, 1e-5)
            x = ir.ops.linear(x, matrix)
            states += [x, residual]
        return states


def test_residual_that_aliases_the_input_is_right_at_every_depth() -> None:
    model = Deep()
    with ir.priority(IN_PLACE):
        compiled = compile_call(model, (rows(TOKENS),))
        for num_tokens in (5, 1):
            x = rows(num_tokens)
            found, wanted = compiled(x), native(model, rows(num_tokens))
            assert len(found) == 24
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
            assert torch.equal(x, rows(num_tokens))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "flat": lambda h: h.view(-1),
    "columns": lambda h: h[:, 2:5],
    "transpose": lambda h: h.t(),
    "half": lambda h: h.split([4, 4], dim=1)[1],
    "heads": lambda h: h.view(-1, 2, 4)[:, 1],
    "strided": lambda h: h.as_strided((2, 2), (8, 3), 1),
}


def _read_views_around_a_call(x: Tensor, r: Tensor) -> list[Tensor]:
    """Each view is made before a call takes what it is of, and read after it."""
    results: list[Tensor] = []
    for view in VIEWS.values():
        for h in (x, x * 3):
            seen = view(h)
            results += FUSED(h, r + seen.sum(), None, 1e-5)
            results.append(seen + 1)
    return results


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_view_that_is_read_after_a_call_keeps_its_values(backend: str) -> None:
    with ir.priority(IN_PLACE):
        whole = trace(_read_views_around_a_call, (5, 8), (5, 8))
        _, run = compile_whole(whole, backend=backend)
        given = random_tensors((5, 8), (5, 8))
        found = list(run(*given))
    kept = random_tensors((5, 8), (5, 8))
    torch.testing.assert_close(found, native(_read_views_around_a_call, *kept))
    torch.testing.assert_close(given, kept, rtol=0, atol=0)


def _read_lazily_before_a_call(x: Tensor, r: Tensor) -> list[Tensor]:
    """Loops over what a kernel made, whose values are needed after another has overwritten it."""
    results: list[Tensor] = []
    for number, read in enumerate((torch.exp, torch.tanh, lambda g: g.view(-1, 2, 4).sum(1) * 2)):
        made = ir.ops.silu_and_mul(x + number)
        seen = read(made)
        normal, total = FUSED(made, r, None, 1e-5)
        results += [normal + seen.sum(-1, keepdim=True) + seen.repeat(1, 8 // seen.shape[1]), total]
    return results


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_loop_over_what_is_overwritten_later_runs_before(backend: str) -> None:
    with ir.priority(IN_PLACE):
        _, run = compile_whole(trace(_read_lazily_before_a_call, ("T", 16), ROWS), backend=backend)
        found = list(run(*random_tensors(("T", 16), ROWS)))
    wanted = native(_read_lazily_before_a_call, *random_tensors(("T", 16), ROWS))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inputs_on_one_storage_are_read_after_a_call_on_one_of_them(backend: str) -> None:
    def model(left: Tensor, middle: Tensor, r: Tensor) -> tuple[Tensor, ...]:
        first = FUSED(left, r, None, 1e-5)
        return *first, *FUSED(middle, left, None, 1e-5), left + middle

    def parts(base: Tensor) -> tuple[Tensor, Tensor]:
        return base[:, :8], base[:, 4:12]

    fakes = FakeInputs()
    base, r = fakes.tensor(("T", 16)), fakes.tensor(ROWS)
    with fakes.mode:
        left, middle = parts(base)
    with ir.priority(IN_PLACE):
        _, run = compile_whole(trace_function(model, [left, middle, r]), backend=backend)
        for num_tokens in (5, 1):
            given = random_tensors(("T", 16), ROWS, tokens=num_tokens)
            found = tuple(run(*parts(given[0]), given[1]))
            kept = random_tensors(("T", 16), ROWS, tokens=num_tokens)
            torch.testing.assert_close(found, native(model, *parts(kept[0]), kept[1]))
            torch.testing.assert_close(given, kept, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_tensor_of_the_caller_is_overwritten_only_where_it_was_given_away(backend: str) -> None:
    def keeping(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        return FUSED(x, r, None, 1e-5)

    def giving(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        return FUSED.maybe_inplace(x, r, None, 1e-5)

    with ir.priority(IN_PLACE):
        x, r = rows(5), rows(5) + 1
        compiled = compile_call(keeping, (rows(TOKENS), rows(TOKENS)), "x r", backend=backend)
        first, second = compiled(x, r), compiled(x, r)
        assert all(map(torch.equal, first, second))
        assert torch.equal(x, rows(5))
        assert torch.equal(r, rows(5) + 1)
        torch.testing.assert_close(first, native(keeping, x, r))
        compiled = compile_call(giving, (rows(TOKENS), rows(TOKENS)), "x r", backend=backend)
        third = compiled(x, r)
        assert all(map(torch.equal, first, third))
        assert torch.equal(x, third[0])
        assert torch.equal(r, third[1])


@pytest.mark.parametrize("op", [ir.ops.all_reduce, ir.ops.reduce_scatter])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_collective_leaves_its_operand_alone(op: ir.IrOp, backend: str) -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        y = op(x)
        return y + x, y

    compiled = compile_call(model, (rows(TOKENS),), backend=backend)
    x = rows(5)
    total, y = compiled(x)
    assert torch.equal(x, rows(5))
    assert torch.equal(total, x * 2)
    y.zero_()
    assert torch.equal(x, rows(5))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_step_copies_nothing_and_no_op_returns_memory_of_its_arguments(backend: str) -> None:
    model, eager = Model(2), Model(2)
    places = [each.data_ptr() for each in model.buffers()]
    with ir.priority(IN_PLACE), torch.no_grad():
        compiled = compile_call(model, arguments(TOKENS), " ".join(DIMS), backend=backend)
        ran = Calls()
        with ran:
            found = compiled(*arguments(5))
        wanted = eager(*arguments(5))
    torch.testing.assert_close(found, wanted)
    assert ran.count("ir::paged_attention") == 2
    assert ran.count("aten::clone", "aten::copy_", "aten::_to_copy") == 0
    assert places == [each.data_ptr() for each in model.buffers()]
    for mine, theirs in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_one_cache_are_written_in_place_across_cuts(
    kernels: Kernels, backend: str
) -> None:
    """Keys and values are halves of one allocation; pieces hand views of it on."""

    def model(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = cache.unbind(0)
        y = kernels.scale(x, None, 3.0)
        kernels.store(y, keys)
        kernels.store(y * 2, values.view(8))
        return y + keys, values * 2

    whole = trace(model, ROWS, (2, 8), dialect=kernels.dialect)
    program, run = compile_whole(whole, kernels.dialect, backend)
    assert len(program.units) >= 2
    for num_tokens in (5, 1):
        given, kept = (random_tensors(ROWS, (2, 8), tokens=num_tokens) for _ in range(2))
        ran = Calls()
        with ran, torch.no_grad():
            found = tuple(run(*given))
        torch.testing.assert_close(found, model(*kept))
        torch.testing.assert_close(given[1], kept[1])
        assert ran.count("aten::clone", "aten::copy_") == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_write_of_an_op_that_does_not_split_is_seen_and_kept(
    kernels: Kernels, backend: str
) -> None:
    """Its results have no users, and its argument is read before and after it."""

    @kernels.registry.register_op(mutates=("cache",), opaque=True)
    def note(x: Tensor, cache: Tensor) -> None:
        """Add the first row to a cache."""
        cache += x[:1].sum(0)

    @note.register_fake
    def _fake(x: Tensor, cache: Tensor) -> None:
        """Writes nothing."""

    def model(x: Tensor, cache: Tensor, unread: Tensor) -> tuple[Tensor, ...]:
        before = cache * 2
        note(x, cache)
        note(x * 3, unread)
        middle = cache * 2
        note(x, cache)
        return before, middle, cache * 2

    shapes = (ROWS, (8,), (8,))
    whole = trace(model, *shapes, dialect=kernels.dialect)
    program, run = compile_whole(whole, kernels.dialect, backend)
    assert len(program.units) == 1
    given, kept = random_tensors(*shapes), random_tensors(*shapes)
    found = tuple(run(*given))
    torch.testing.assert_close(found, model(*kept))
    torch.testing.assert_close(given, kept)


OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "both": lambda m: (m[0], m[1]),
    "swapped": lambda m: (m[1] * 1, m[0] * 1),
    "first only": lambda m: (m[0] + 1,),
    "second only": lambda m: (m[1] + 1,),
    "first twice": lambda m: (m[0] * m[0], m[0]),
    "neither": lambda m: (torch.zeros(2),),
}


@pytest.mark.parametrize("provider", ["native", "inplace"])
@pytest.mark.parametrize("use", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_outputs_of_a_lowered_op_reach_their_own_users(
    kernels: Kernels, use: Callable[[Any], Any], provider: str
) -> None:
    kernels.prefer(merge=(provider,))

    def model(x: Tensor, y: Tensor) -> Any:
        return use(kernels.merge(x * 2, y + 1, 3.0))

    whole = trace(model, ROWS, ROWS, dialect=kernels.dialect)
    lower_whole(whole, kernels.dialect)
    for num_tokens in (5, 1):
        inputs = random_tensors(ROWS, ROWS, tokens=num_tokens)
        found = tuple(whole.module(*inputs))
        torch.testing.assert_close(found, model(*inputs), rtol=0, atol=0)


def test_repeated_getitem_of_a_lowered_op_is_one_output(kernels: Kernels) -> None:
    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first, second = kernels.merge(x, y)
        return first * 2, first + second

    whole = trace(model, ROWS, ROWS, dialect=kernels.dialect)
    merged = node_calling(whole.module, "merge")
    first = next(user for user in merged.users if user.args[1] == 0)
    with whole.module.graph.inserting_after(first):
        twin = whole.module.graph.call_function(operator.getitem, first.args)
    twin.meta.update(first.meta)
    node_calling(whole.module, "mul").replace_input_with(first, twin)
    program, run = compile_whole(whole, kernels.dialect)
    assert "merge" not in calls(program.distinct_units[0].lowered.module)
    inputs = random_tensors(ROWS, ROWS)
    torch.testing.assert_close(tuple(run(*inputs)), model(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_ops_that_write_inside_an_implementation_survive_a_backend(
    kernels: Kernels, backend: str
) -> None:
    """An inlined in-place implementation is a row of writes whose results nobody takes."""
    kernels.prefer(merge=("inplace",))

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        left = x * 2
        first, second = kernels.merge(left, y)
        third, fourth = kernels.merge(first, second * 3, 2.0)
        return third, fourth, left + second

    whole = trace(model, ROWS, ROWS, dialect=kernels.dialect)
    _, run = compile_whole(whole, kernels.dialect, backend)
    for num_tokens in (5, 1):
        given, kept = (random_tensors(ROWS, ROWS, tokens=num_tokens) for _ in range(2))
        torch.testing.assert_close(tuple(run(*given)), model(*kept))
        torch.testing.assert_close(given, kept, rtol=0, atol=0)
