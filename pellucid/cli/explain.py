"""`pellucid explain`: ask a running server, or a trace file, why."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pellucid.cli.errors import clean_errors

EXAMPLES = """Examples:\n
    pellucid explain request chatcmpl-8c0f...\n
    pellucid explain step 148 --url http://127.0.0.1:9000\n
    pellucid explain cache\n
    pellucid explain request chatcmpl-8c0f... --trace trace.json
"""

app = typer.Typer(
    help="Why a request waited, what a step did, what the prefix cache holds.", no_args_is_help=True, epilog=EXAMPLES
)

Url = Annotated[str, typer.Option(help="The running server.")]
Key = Annotated[str | None, typer.Option(help="Its API key.", envvar="PELLUCID_API_KEY", show_envvar=True)]
Trace = Annotated[str | None, typer.Option(metavar="FILE", help="Read what `serve --trace` wrote, instead.")]

DEFAULT_URL = "http://127.0.0.1:8000"


@app.command("request")
def request(
    request_id: Annotated[str, typer.Argument(help="The id in a response, or its x-request-id header.")],
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    trace: Trace = None,
) -> None:
    """Tell the story of a request, with times."""
    from pellucid.observability.explain import explain_request

    _explain(("requests", request_id), lambda events: explain_request(events, request_id), url, api_key, trace)


@app.command("step")
def step(
    number: Annotated[int, typer.Argument(min=1, help="The number of a step.")],
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    trace: Trace = None,
) -> None:
    """Tell what a step computed, for whom, and how long each part took."""
    from pellucid.observability.explain import explain_step

    _explain(("steps", str(number)), lambda events: explain_step(events, number), url, api_key, trace)


@app.command("cache")
def cache(url: Url = DEFAULT_URL, api_key: Key = None, trace: Trace = None) -> None:
    """Tell which prefixes live in the cache, how often they were hit, and what was evicted."""
    from pellucid.observability.explain import explain_cache

    _explain(("cache",), lambda events: explain_cache(events, None), url, api_key, trace)


def _explain(path: tuple[str, ...], explain: Any, url: str, api_key: str | None, trace: str | None) -> None:
    with clean_errors():
        if trace is None:
            print(_ask(url, path, api_key))
            return
        from pellucid.observability.explain import UnknownSubjectError
        from pellucid.observability.trace_file import read_trace

        events = sorted(read_trace(trace), key=lambda event: event.time)
        try:
            print(explain(events).text())
        except UnknownSubjectError as error:
            raise ValueError(str(error)) from None


def _ask(url: str, path: tuple[str, ...], api_key: str | None) -> str:
    """Raises ValueError with what the server says, or with why there is no answer."""
    from urllib.parse import quote

    import httpx

    key = next(iter((api_key or "").split()), None)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    address = "/".join([url.rstrip("/"), "explain", *(quote(part, safe="") for part in path)])
    try:
        response = httpx.get(address, headers=headers, timeout=30)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(f"no answer from {url}: {error}; is a server running there? (--url names another)") from None
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("text"), str):
        return answer["text"]
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        raise ValueError(answer["error"].get("message"))
    raise ValueError(f"{url} answers, but not as a pellucid server does (HTTP {response.status_code})")
