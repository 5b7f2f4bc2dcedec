"""A text to round by: half of the documentation of Python's language, which comes with Python."""

from __future__ import annotations

from pydoc_data.topics import topics

_NAMES = sorted(topics)
TEXT = "\n\n".join(topics[name] for name in _NAMES[len(_NAMES) // 2 :])
