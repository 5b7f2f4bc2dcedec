"""One engine process, as its front end has it."""

from __future__ import annotations

from pellucid.config import EngineConfig
from pellucid.core.messages import Shutdown
from pellucid.engine.child import ChildProcess
from pellucid.engine.wire import Configure, FromEngine, front_end_side_reader


class EngineProcess(ChildProcess[FromEngine]):
    @classmethod
    def spawn(cls, config: EngineConfig, builder: str) -> EngineProcess:
        """Start the process; it begins to load at once. See ChildProcess.start."""
        process = cls(*cls.start("engine", "--builder", builder), front_end_side_reader())
        process.send(Configure(config=config))
        return process

    def ask_to_leave(self) -> None:
        self.send(Shutdown())
