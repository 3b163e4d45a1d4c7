"""The served model gives the reference's tokens: float32 exactly, bfloat16 wherever it is clear."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from server_process import Server, reference, running

import ir_core as ir

COMPLETIONS = reference("completions")
CHATS = reference("chat")
FUSED = "rotary_paged_attention"
MODEL_OPS = (
    "embedding",
    "linear",
    "rms_norm",
    "fused_add_rms_norm",
    "silu_and_mul",
    "rotary_embedding",
    "paged_attention",
    FUSED,
)


def _complete(server: Server, entry: dict[str, Any], **extra: Any) -> dict[str, Any]:
    body = {
        "prompt": entry["prompt"],
        "max_tokens": len(entry["greedy_ids"]),
        "temperature": 0,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "logprobs": 1,
    }
    return server.post("/v1/completions", body | extra)["choices"][0]


def _chat(server: Server, entry: dict[str, Any]) -> dict[str, Any]:
    body = {
        "messages": entry["messages"],
        "max_tokens": len(entry["greedy_ids"]),
        "temperature": 0,
        "return_token_ids": True,
    }
    return server.post("/v1/chat/completions", body)


def _assert_exact(choice: dict[str, Any], entry: dict[str, Any]) -> None:
    assert choice["prompt_token_ids"] == entry["prompt_ids"]
    assert choice["token_ids"] == entry["greedy_ids"]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(entry["logprobs"], abs=1e-3)


@pytest.mark.parametrize("entry", COMPLETIONS, ids=lambda entry: entry["prompt"][:20])
def test_float32_completion_alone_is_exact(float32_server: Server, entry: dict[str, Any]) -> None:
    _assert_exact(_complete(float32_server, entry), entry)


@pytest.mark.parametrize("entry", CHATS, ids=lambda entry: entry["prompt"][-60:-30])
def test_float32_chat_alone_is_exact(float32_server: Server, entry: dict[str, Any]) -> None:
    answer = _chat(float32_server, entry)
    assert answer["choices"][0]["token_ids"] == entry["greedy_ids"]
    assert answer["usage"]["prompt_tokens"] == len(entry["prompt_ids"])


def test_float32_all_in_flight_at_once_are_exact(float32_server: Server) -> None:
    with ThreadPoolExecutor(len(COMPLETIONS) + len(CHATS)) as pool:
        completions = [pool.submit(_complete, float32_server, entry) for entry in COMPLETIONS]
        chats = [pool.submit(_chat, float32_server, entry) for entry in CHATS]
        for pending, entry in zip(completions, COMPLETIONS, strict=True):
            _assert_exact(pending.result(timeout=100), entry)
        for pending, entry in zip(chats, CHATS, strict=True):
            assert pending.result(timeout=100)["choices"][0]["token_ids"] == entry["greedy_ids"]


@pytest.mark.parametrize("provider", ["native", "vllm_c"])
def test_one_provider_everywhere_gives_equal_float32_tokens(
    provider: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ir.load_plugins()
    offered = {op: ir.registry()[op].implementations.get(provider) for op in MODEL_OPS}
    ops = [op for op, implementation in offered.items() if implementation is not None]
    for op in ops:
        implementation = ir.registry()[op].implementations[provider]
        if not implementation.supported:
            pytest.skip(f"`{provider}` of `{op}`: {implementation.unsupported_reason}")
    flags = [f"--ir-op-priority.{op}={provider}" for op in ops]
    log_path = tmp_path_factory.mktemp(provider) / "server.log"
    for server in running(log_path, "--dtype", "float32", *flags):
        for entry in COMPLETIONS[:3]:
            _assert_exact(_complete(server, entry), entry)
        used = {
            (row["op"], row["provider"]) for row in server.get("/debug/ir").json()["selections"]
        }
        # A provider that turns heads and attends in one call does both so.
        attention = ("rotary_embedding", "paged_attention")
        unused = attention if (FUSED, provider) in used else (FUSED,)
        assert {(op, provider) for op in ops if op not in unused} <= used


def test_bfloat16_follows_the_reference_where_it_is_clear(bfloat16_server: Server) -> None:
    assert "quantization none (asked for)" in bfloat16_server.log
    assert _mean_difference(bfloat16_server, clear_gap=0.3) < 0.1


def test_stored_integers_follow_the_reference_closely(default_server: Server) -> None:
    """By default the projections of the embedded model are `w4a16`, its table `w8a16`."""
    if "expands them at each call" in default_server.log:
        pytest.skip("only native computes with the stored integers here, so they are expanded")
    assert (
        "bfloat16 (auto: the checkpoint is quantised); quantization auto (kept as stored): "
        "1 x w8a16, 120 x w4a16 with minimum"
    ) in default_server.log
    assert _mean_difference(default_server, clear_gap=0.5) <= 0.05
    rows = default_server.get("/debug/ir").json()["selections"]
    used = {row["op"] for row in rows}
    assert {"linear_w4a16", "linear_w8a16", "embedding_w8a16"} <= used
    assert not used & {"linear", "embedding"}


def _mean_difference(server: Server, *, clear_gap: float) -> float:
    """Mean |difference| of the logprobs along the reference.

    Asserts that the likeliest token is the reference's wherever its lead exceeds `clear_gap`.
    """
    differences: list[float] = []
    for entry in COMPLETIONS:
        choice = server.post(
            "/v1/completions",
            {
                "prompt": [*entry["prompt_ids"], *entry["greedy_ids"]],
                "max_tokens": 0,
                "echo": True,
                "logprobs": 2,
                "return_tokens_as_token_ids": True,
            },
        )["choices"][0]
        start = len(entry["prompt_ids"])
        logprobs = choice["logprobs"]["token_logprobs"][start:]
        tops = choice["logprobs"]["top_logprobs"][start:]
        differences += [abs(a - b) for a, b in zip(logprobs, entry["logprobs"], strict=True)]
        for token_id, gap, top in zip(entry["greedy_ids"], entry["top2_gap"], tops, strict=True):
            if gap > clear_gap:
                assert max(top, key=top.get) == f"token_id:{token_id}", (entry["prompt"], gap, top)
    mean = sum(differences) / len(differences)
    print(f"mean |Δ logprob| = {mean:.4f} over {len(differences)} tokens")
    return mean
