"""Owns the engine's bounds as plain facts; refuses to read settings or guess from the machine."""

from dataclasses import dataclass

from serve_shim.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the scheduler, the worker and the step loop may use.

    `max_num_batched_tokens` is the budget of one step, `max_queue` how many sequences may wait
    beyond the `max_num_seqs` that run (None: no bound). Without chunked prefill a prompt enters
    in one step, so the budget is then at least `max_model_len`. Blocks hold `block_size` tokens.
    Raises `SettingsError` where the bounds contradict each other.
    """

    max_model_len: int
    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_queue: int | None = 256
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    watchdog_timeout_s: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Compare the bounds with each other."""
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SettingsError(
                f"`max_num_batched_tokens` ({self.max_num_batched_tokens}) is less than "
                f"`max_num_seqs` ({self.max_num_seqs}); every running sequence needs one token "
                "per step, so raise the first or lower the second"
            )
        if self.max_model_len > self.num_blocks * self.block_size:
            raise SettingsError(
                f"`max_model_len` ({self.max_model_len}) exceeds the KV cache of "
                f"{self.num_blocks * self.block_size} tokens; lower it, or raise `num_blocks` or "
                "`kv_cache_memory_bytes`"
            )

    @property
    def max_step_tokens(self) -> int:
        """The most tokens that one step can hold."""
        if self.enable_chunked_prefill:
            return self.max_num_batched_tokens
        return max(self.max_num_batched_tokens, self.max_model_len)

    @property
    def max_blocks_per_sequence(self) -> int:
        """The width of the block table."""
        return -(-self.max_model_len // self.block_size)
