"""What the server tells about itself."""

import asyncio
from importlib.metadata import version

import pytest
import torch

import ir_core as ir
from ir_core import Rejection
from ir_core.autotuning.table import Timing, TunedChoice, TunedTable

from .client import Client
from .fake_engine import FakeEngine


def test_version(client: Client) -> None:
    assert client.get("/version").json() == {"version": version("serve-shim")}


def test_load_counts_what_is_in_flight(client: Client, engine: FakeEngine) -> None:
    async def look() -> tuple[bytes, bytes]:
        engine.gate.clear()
        call = client.start("POST", "/v1/completions", {"prompt": "x"})
        await asyncio.sleep(0.02)
        busy = await client.start("GET", "/load").reply()
        await call.leave()
        idle = await client.start("GET", "/load").reply()
        return busy.body, idle.body

    assert client.run(look()) == (b'{"server_load":1}', b'{"server_load":0}')


def test_selections_agree_with_ir_core_and_the_metrics(client: Client) -> None:
    ir.ops.silu_and_mul(torch.randn(2, 8))
    rows = client.get("/debug/ir").json()["selections"]
    assert "silu_and_mul" in {row["op"] for row in rows}
    assert [(row["op"], row["provider"], row["layout"], row["calls"]) for row in rows] == [
        (row.op, row.provider, row.layout, row.calls) for row in ir.selections()
    ]
    text = client.get("/metrics").body.decode()
    for row in rows:
        assert f'ir_impl_info{{op="{row["op"]}",provider="{row["provider"]}"}} 1.0' in text


def test_what_timing_chose_is_shown(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    timings = (Timing("vllm_c", {1: 12.1}), Timing("native", {1: 40.3}))
    rejections = (Rejection("triton", "needs a GPU"),)
    written = (Timing("vllm_c", {1: 4.5}),)
    choice = TunedChoice("silu_and_mul", "x: a", "native", "vllm_c", timings, rejections, written)
    monkeypatch.setattr(ir.registry().priorities, "_tuned", TunedTable([choice]))
    assert client.get("/debug/ir").json()["autotuned"] == [
        {
            "op": "silu_and_mul",
            "signature": "x: a",
            "default": "native",
            "provider": "vllm_c",
            "ranges": [{"first": 1, "last": None, "provider": "vllm_c"}],
            "remark": "",
            "microseconds": {"vllm_c": {"1": 12.1}, "native": {"1": 40.3}},
            "microseconds_as_written": {"vllm_c": {"1": 4.5}},
            "rejections": [{"provider": "triton", "reason": "needs a GPU"}],
        }
    ]
