"""What a client test has in its hands: a server that says what it is told, and a way to run a client against it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import RunningServer

MODEL = "m"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass
class ScriptedServer:
    """script: [WORDS, ANSWER] pairs, see tests/server/scripted_answers.py."""

    running: RunningServer
    _script: Path

    @property
    def url(self) -> str:
        assert self.running.url is not None
        return self.running.url

    def says(self, *script: tuple[str, str]) -> None:
        self._script.write_text(json.dumps(script))

    def run_client(
        self, command: Sequence[str], *, cwd: Path, timeout_s: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A client in a home of its own, with nothing to read from. Fails with its output where it fails."""
        home = cwd / ".home"
        home.mkdir(exist_ok=True)
        # PWD: some agents take their folder from there
        own = {"HOME": str(home), "PWD": str(cwd), "PATH": os.environ["PATH"], "CI": "1", **environment}
        result = subprocess.run(
            list(command),
            cwd=cwd,
            env=own,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert result.returncode == 0, f"{result.stdout}\n{result.stderr}\n{''.join(self.running.errors)}"
        return result
