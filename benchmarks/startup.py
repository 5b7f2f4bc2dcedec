"""Seconds from `./run serve` to the first streamed token at a client, warm: everything installed, the model fetched.

python benchmarks/startup.py [--rounds 5] [-- MODEL and flags of `pellucid serve`]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import time
from pathlib import Path

import httpx

RUN = Path(__file__).parent.parent / "run"
PORT = 8765


def first_token_seconds(arguments: list[str]) -> float:
    """One start, one streamed answer, one stop."""
    start = time.perf_counter()
    command = [str(RUN), "serve", "--port", str(PORT), "--served-model-name", "m", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while True:
            if server.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {server.returncode}")
            try:
                return _ask(start)
            except (httpx.HTTPError, ConnectionError):
                time.sleep(0.02)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)


def _ask(start: float) -> float:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}
    url = f"http://127.0.0.1:{PORT}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                return time.perf_counter() - start
    raise RuntimeError("the stream ended without a token")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("arguments", nargs="*")
    args = parser.parse_args()
    first_token_seconds(args.arguments)  # warms the file cache
    times = [first_token_seconds(args.arguments) for _ in range(args.rounds)]
    print(
        f"first token after {statistics.median(times):.2f} s "
        f"(median of {args.rounds}; {min(times):.2f} to {max(times):.2f})"
    )


if __name__ == "__main__":
    main()
