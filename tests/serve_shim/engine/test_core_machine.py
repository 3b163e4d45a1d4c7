"""Any order of additions, aborts and steps keeps the accounts right and the tokens unchanged."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from toy_engine import POISON, Outcome, ToyModel, run, step, submit, toy_parts

from serve_shim.engine.request import Request


class EngineMachine(RuleBasedStateMachine):
    """A small cache, so that pre-emption, eviction and reuse happen often."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.model = ToyModel()
        self.parts = toy_parts(
            self.model, num_blocks=9, max_model_len=28, max_num_seqs=3, max_num_batched_tokens=7
        )
        self.outcomes: dict[Request, Outcome] = {}
        self.expected: dict[Request, list[int]] = {}

    @rule(
        target=requests,
        prompt=st.lists(st.sampled_from([5, 6, 7]), min_size=1, max_size=14),
        max_tokens=st.integers(1, 14),
        n=st.integers(1, 2),
    )
    def add(self, prompt: list[int], max_tokens: int, n: int) -> Request:
        request = submit(self.parts, prompt, max_tokens=max_tokens, n=n)
        self.expected[request] = self.model.greedy(prompt, max_tokens)
        return request

    @rule(
        target=requests,
        cuts=st.sampled_from([{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1, "top_p": 0.9}]),
        temperature=st.sampled_from([0.0, 1.0]),
    )
    def add_poison(self, cuts: dict[str, float], temperature: float) -> Request:
        request = submit(self.parts, [5, POISON], temperature=temperature, **cuts)
        self.expected[request] = []
        return request

    @rule(request=requests)
    def abort(self, request: Request) -> None:
        self.parts.core.abort(request)
        outcome = self.outcomes.setdefault(request, Outcome())
        if not (outcome.is_finished or outcome.errors):
            del self.expected[request]
            self.outcomes[request].is_finished = True

    @rule(count=st.integers(1, 6))
    def advance(self, count: int) -> None:
        for _ in range(count):
            step(self.parts.core, self.outcomes)

    @invariant()
    def accounts_agree(self) -> None:
        self.parts.core.check_accounts()

    def teardown(self) -> None:
        run(self.parts.core, self.outcomes)
        stats = self.parts.core.stats()
        assert stats.num_free_blocks == stats.num_blocks
        for request, tokens in self.expected.items():
            assert len(self.outcomes[request].errors) == (POISON in request.prompt_ids)
            for index in range(request.params.n):
                assert self.outcomes[request].tokens(index) == tokens


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
