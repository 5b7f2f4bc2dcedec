"""How a server listens and what it lets in. Torch-free, and free of the web framework: the command line imports it."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import msgspec

from pellucid.frontend.parsing.formats import AUTO, NONE, REASONING_FORMATS, TOOL_FORMATS
from pellucid.structured.grammar import COMPILE_TIMEOUT_S

MIB = 1024 * 1024


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `pellucid serve` takes beside the engine's own options."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    api_keys: tuple[str, ...] = ()  # any of them opens the door; none: no key is asked for
    allow_unauthenticated: bool = False  # listen beyond this machine although no key is asked for
    max_queue: int = 256  # requests that may wait to be scheduled; one more is refused with 503
    request_timeout_s: float | None = 600.0  # from arrival to the last token; None: no limit
    shutdown_timeout_s: float = 30.0  # how long running work may go on after SIGTERM
    write_timeout_s: float = 30.0  # a client that takes no byte for so long is let go
    body_timeout_s: float = 30.0  # a request must be here this long after its first byte, or after the last part of it
    ping_interval_s: float = 15.0  # a stream that is silent for so long gets a comment, so that proxies keep it open
    constraint_timeout_s: float = COMPILE_TIMEOUT_S  # a schema or grammar that takes longer to compile is refused
    max_body_bytes: int = 16 * MIB
    max_header_bytes: int = 64 * 1024
    max_json_depth: int = 64
    response_store: str = ""  # database URL of stored responses; "": SQLite in the user's data directory; "none"
    response_max_count: int = 10_000  # responses kept; one more, and the one that was unused for longest goes
    response_max_age_s: float = 30 * 24 * 3600.0
    response_lease_s: float = 12.0  # a server that is silent for so long in the database is dead, and its work failed
    tool_call_parser: str = AUTO  # how the model writes tool calls: a name of TOOL_FORMATS, "auto" or "none"
    reasoning_parser: str = AUTO  # how it marks its reasoning: a name of REASONING_FORMATS, "auto" or "none"
    reranker_template: str = ""  # a file: how a model that answers with yes or no is asked; "": scores are cosines
    generation_config: str = AUTO  # sampling defaults: "auto", those of the model's files, or "none", OpenAI's
    access_log: bool = False  # one line of JSON a request on stderr, without content
    request_log: str = ""  # the same in a file; "": none
    request_log_content: bool = False  # in it the bodies, too
    ui: bool = True  # the engine room at /ui
    ui_control: bool = False  # it may pause and step the scheduler, for everybody
    trace_file: str | None = None  # where to write a Chrome trace of everything that happens
    otlp_traces_endpoint: str | None = None  # URL that OpenTelemetry spans are posted to
    trace_max_bytes: int = 1 << 30  # it grows no larger


class OptionsError(ValueError):
    """The options contradict each other or ask for something unsafe; str() names the way out."""


def check_options(options: ServerOptions) -> None:
    """Raises OptionsError. Called before anything is bound or loaded."""
    if any(not key for key in options.api_keys):
        raise OptionsError("an API key must not be empty")
    if not 0 <= options.port <= 65535:
        raise OptionsError(f"port={options.port} is not a port; it must be between 0 and 65535")
    if options.request_log_content and not options.request_log:
        raise OptionsError("request_log_content has nowhere to go: give --request-log FILE as well")
    if options.max_queue < 1:
        raise OptionsError(f"max_queue={options.max_queue} lets nothing in; it must be at least 1")
    if options.response_max_count < 1:
        raise OptionsError(
            f"response_max_count={options.response_max_count} keeps nothing; --response-store none says so"
        )
    if not 0 < options.response_max_age_s < 1e10 or not 0 < options.response_lease_s < 1e6:
        raise OptionsError("response_max_age_s and response_lease_s must be positive numbers of seconds")
    if options.response_store not in ("", "none"):
        from pellucid.server.responses_api.tables import parse_url  # slow to import, and rarely needed

        try:
            parse_url(options.response_store)
        except ValueError as error:
            raise OptionsError(f"--response-store: {error}") from error
    for name, known in (("tool_call_parser", TOOL_FORMATS), ("reasoning_parser", REASONING_FORMATS)):
        if (value := getattr(options, name)) not in (AUTO, NONE, *known):
            raise OptionsError(f"{name}={value} is not known; there are {AUTO}, {NONE}, {', '.join(known)}")
    if options.generation_config not in (AUTO, NONE):
        raise OptionsError(f"generation_config={options.generation_config} is not known; there are {AUTO} and {NONE}")
    if options.ui_control and not options.ui:
        raise OptionsError("ui_control without ui controls nothing: leave out --no-ui, or --ui-control")
    if options.otlp_traces_endpoint is not None and not _is_http_url(options.otlp_traces_endpoint):
        raise OptionsError(
            f"otlp_traces_endpoint={options.otlp_traces_endpoint} is no URL; write for example "
            "http://localhost:4318/v1/traces"
        )
    if options.trace_max_bytes < 1 << 16:
        raise OptionsError(f"trace_max_bytes={options.trace_max_bytes} holds no trace; it must be at least 64KiB")
    if not 0 < options.constraint_timeout_s <= COMPILE_TIMEOUT_S:
        raise OptionsError(
            f"constraint_timeout_s={options.constraint_timeout_s} must be above 0 and at most {COMPILE_TIMEOUT_S:g}: "
            "the engine waits no longer for a grammar"
        )
    for name in ("request_timeout_s", "shutdown_timeout_s", "write_timeout_s", "body_timeout_s", "ping_interval_s"):
        value = getattr(options, name)
        if value is not None and not 0 <= value < 1e9:
            raise OptionsError(f"{name}={value} is not a number of seconds")
    if not options.api_keys and not options.allow_unauthenticated and not is_loopback(options.host):
        raise OptionsError(
            f"host={options.host} can be reached from other machines and no API key is set: give --api-key KEY, "
            "or --allow-unauthenticated if everyone who can reach this port may use it"
        )


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
