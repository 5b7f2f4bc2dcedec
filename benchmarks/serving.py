"""Served over HTTP against offline: output tokens a second of 32 requests sent together, as a ratio.

    python benchmarks/serving.py MODEL [--quantization int8] [--streams 32] [--rounds 5]

`pellucid serve` streams to a client on the same machine; the LLM class computes the same requests in this process. They
take turns, so that what else the machine does hits both. Prompts are fresh each time: no prefix cache helps. The pools
are so small that all of their memory has been used when the first round that counts begins, as in a server that has
been up for a while.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time

import httpx

from pellucid import LLM, SamplingParams

PROMPT, OUTPUT, MAX_MODEL_LEN, BLOCK_SIZE = 128, 64, 2048, 16
WARM_UPS = 2
MORE_THAN_A_STREAM = 1 << 16  # bytes


def start_server(model: str, quantization: str | None, port: int, num_kv_blocks: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pellucid", "serve", model, "--port", str(port), "--served-model-name", "m"]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--num-kv-blocks", str(num_kv_blocks)]
    command += ["--quantization", quantization] if quantization else []
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    begin = time.monotonic()
    while time.monotonic() - begin < 300:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with exit code {server.returncode}: {' '.join(command)}")
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                return server
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise SystemExit("the server was not ready after five minutes")


async def over_http(port: int, prompts: list[list[int]]) -> float:
    """Seconds until the last stream has ended.

    The client shares the cores with what it measures, and its work is no part of a server's: it sleeps until the kernel
    has all of a stream for it, as if it were on another machine.
    """
    body = {"model": "m", "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True, "stream": True}

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, prompt: list[int]) -> None:
        content = json.dumps({**body, "prompt": prompt}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, MORE_THAN_A_STREAM)
        writer.write(f"{head}content-length: {len(content)}\r\nconnection: close\r\n\r\n".encode() + content)
        answer = await reader.read(-1)
        writer.close()
        if not answer.startswith(b"HTTP/1.1 200 ") or b"data: [DONE]" not in answer[-100:]:
            raise SystemExit(f"a stream went wrong: {answer[:200]!r} ... {answer[-200:]!r}")

    connections = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in prompts))
    begin = time.perf_counter()
    await asyncio.gather(*(stream(*pair, prompt) for pair, prompt in zip(connections, prompts, strict=True)))
    return time.perf_counter() - begin


def offline(llm: LLM, prompts: list[list[int]]) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    begin = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--quantization", default=None)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    num_kv_blocks = max(args.streams * (PROMPT + OUTPUT), MAX_MODEL_LEN) * 5 // 4 // BLOCK_SIZE
    server = start_server(args.model, args.quantization, port, num_kv_blocks)
    try:
        llm = LLM(args.model, quantization=args.quantization, max_model_len=MAX_MODEL_LEN, num_kv_blocks=num_kv_blocks)
        numbers = random.Random(os.getpid())

        def prompts() -> list[list[int]]:
            return [[numbers.randrange(10, 40000) for _ in range(PROMPT)] for _ in range(args.streams)]

        pairs = []
        for round_number in range(1 - WARM_UPS, args.rounds + 1):
            served = asyncio.run(over_http(port, prompts()))
            alone = offline(llm, prompts())
            if round_number > 0:
                pairs.append((served, alone))
                tokens = args.streams * OUTPUT
                print(f"round {round_number}: served {tokens / served:.0f} tok/s, offline {tokens / alone:.0f} tok/s")
        print(f"served / offline = {statistics.median(alone / served for served, alone in pairs):.3f} (median)")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)


if __name__ == "__main__":
    main()
