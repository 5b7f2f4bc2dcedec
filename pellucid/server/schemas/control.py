"""The body of POST /engine/control."""

from __future__ import annotations

from typing import Literal

from pellucid.server.schemas.common import StrictModel


class ControlRequest(StrictModel):
    """What the scheduler is to do: stop, make one step while it is stopped, or go on."""

    action: Literal["pause", "step", "resume"]
