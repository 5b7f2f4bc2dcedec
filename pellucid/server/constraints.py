"""Constraints on output as the dialects give them, and their refusals in OpenAI's words."""

from __future__ import annotations

from pellucid.frontend.async_llm import AsyncLLM
from pellucid.frontend.outputs import RequestError
from pellucid.sampling.params import StructuredOutputsParams
from pellucid.server.errors import ApiError, from_request_error, invalid, shorten, unsupported
from pellucid.server.schemas.structured import StructuredOutputs
from pellucid.structured.errors import ConstraintError

STRUCTURED_OUTPUTS = "structured_outputs"
MAX_MESSAGE = 500  # characters


def constraint_of(given: StructuredOutputs | None) -> StructuredOutputsParams | None:
    """Raises ApiError where not exactly one kind is given."""
    if given is None:
        return None
    constraint = given.constraint()
    kinds = [name for name in constraint.__struct_fields__ if getattr(constraint, name) not in (None, False)]
    if len(kinds) != 1:
        raise invalid(
            "Invalid 'structured_outputs': exactly one of json, json_object, regex, choice and grammar must be given, "
            f"but got {', '.join(kinds) or 'none'}.",
            param=STRUCTURED_OUTPUTS,
        )
    return constraint


async def check_constraint(
    llm: AsyncLLM, constraint: StructuredOutputsParams | None, source: str = STRUCTURED_OUTPUTS
) -> None:
    """Compile it, in a process of its own, before anything is sent. Raises ApiError: 503 where it can't be tried now.

    source: the field that it was given in, followed by the name of the schema where it has one.
    """
    if constraint is None:
        return
    assert llm.ready is not None
    if not llm.ready.structured_outputs:
        raise unsupported(source.split()[0], "is not supported by this engine.")
    try:
        await llm.check_constraint(constraint)
    except ConstraintError as error:
        raise refusal(error, source) from error
    except RequestError as error:
        raise from_request_error(error) from error


def refusal(error: ConstraintError, source: str) -> ApiError:
    """source: as in `check_constraint`."""
    detail = shorten(str(error), MAX_MESSAGE)
    if source == STRUCTURED_OUTPUTS:
        param = f"{source}.{error.kind}"
        return invalid(f"Invalid '{param}': {detail}", param=param)
    return invalid(f"Invalid schema for {source}: {detail}", code=None, param=source.split()[0])
