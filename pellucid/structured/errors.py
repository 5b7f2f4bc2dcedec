"""What is wrong with a constraint, in words for whoever asked for it."""

from __future__ import annotations


class ConstraintError(ValueError):
    """kind: the field of StructuredOutputsParams that is wrong; str() says what is."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
