"""Stop strings that apply to the content of an answer, and not to the reasoning before it."""

from __future__ import annotations

from pellucid.frontend.stop_strings import StopStrings
from pellucid.sampling.reasoning import Phase, ReasoningTracker


class ContentStops:
    """In place of StopStrings: `saw` before the text of each token is fed.

    Reasoning passes through at once. As long as an answer may still turn out to begin with the marker of reasoning, its
    text is kept back. Text that the token which ends the reasoning holds behind the marker is not searched.
    """

    def __init__(self, stops: StopStrings, tracker: ReasoningTracker) -> None:
        self._stops = stops
        self._tracker = tracker
        self._phase = tracker.phase  # of the text that comes next
        self._undecided = ""

    @property
    def stopped_by(self) -> str | None:
        return self._stops.stopped_by

    def saw(self, token_id: int) -> None:
        before = self._tracker.phase
        self._tracker.push(token_id)
        after = self._tracker.phase
        self._phase = before if before is Phase.REASONING else after

    def feed(self, text: str, armed: bool = True) -> str:
        text, self._undecided = self._undecided + text, ""
        if self._phase is Phase.OPENING:
            self._undecided = text
            return ""
        return text if self._phase is Phase.REASONING else self._stops.feed(text, armed)

    def flush(self) -> str:
        undecided, self._undecided = self._undecided, ""
        return self._stops.feed(undecided) + self._stops.flush()
