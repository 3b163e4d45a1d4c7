"""The server compiles before it is ready, and nothing afterwards, whatever sizes requests have."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from server_process import Server


def complete(server: Server, prompt: list[int], num_choices: int = 1) -> list[str]:
    body: dict[str, Any] = {
        "model": server.get("/v1/models").json()["data"][0]["id"],
        "prompt": prompt,
        "max_tokens": 3,
        "temperature": 0,
        "n": num_choices,
        "ignore_eos": True,
    }
    return [choice["text"] for choice in server.post("/v1/completions", body)["choices"]]


def late_compilations(server: Server) -> float:
    text = server.get("/metrics").text
    (value,) = re.findall(r"^vllm:compile_after_ready_total (\S+)$", text, re.MULTILINE)
    return float(value)


def test_log_says_what_was_compiled(float32_server: Server) -> None:
    log = float32_server.log
    assert "Compiled token counts 1..512: 3 of 31 pieces are distinct" in log
    assert re.search(r"Selected implementations of fused_add_rms_norm: \w+: 60", log)
    assert re.search(r"Compiled and eager outputs differ by [\d.e-]+ of the largest", log)
    assert "torch.compile and passes took" in log


def test_odd_sizes_compile_nothing_and_change_no_text(float32_server: Server) -> None:
    lengths = [1, 2, 3, 5, 17, 31, 64, 65, 255, 512, 513]
    prompts = [[(7 * i) % 4000 + 5 for i in range(length)] for length in lengths]
    alone = [complete(float32_server, prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: complete(float32_server, prompt), prompts))
    assert together == alone
    assert len(set(complete(float32_server, prompts[3], num_choices=7))) == 1
    assert late_compilations(float32_server) == 0
