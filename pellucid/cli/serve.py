"""`pellucid serve`: the HTTP server and, behind it, the engine process."""

from __future__ import annotations

from typing import Annotated

import typer

from pellucid.cli.errors import clean_errors
from pellucid.cli.options import size_option, with_engine_options
from pellucid.config import EngineConfig

EXAMPLES = """Examples:\n
    pellucid serve\n
    pellucid serve Qwen/Qwen3-0.6B --quantization int8 --max-model-len 32K\n
    pellucid serve model.gguf --host 0.0.0.0 --port 9000 --api-key $KEY
"""


@with_engine_options()
def serve(
    *,
    config: EngineConfig,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 8000,
    served_model_name: Annotated[str | None, typer.Option(help="The model's name in the API.")] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Ask clients for this key. Repeatable.", envvar="PELLUCID_API_KEY", show_envvar=True),
    ] = None,
    allow_unauthenticated: Annotated[
        bool, typer.Option("--allow-unauthenticated", help="Listen beyond this machine although no key is set.")
    ] = False,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait; one more is refused with 503.")] = 256,
    request_timeout: Annotated[float, typer.Option(help="Seconds from arrival to last token; 0 is no limit.")] = 600.0,
    shutdown_timeout: Annotated[float, typer.Option(help="Seconds that running work may take after SIGTERM.")] = 30.0,
    constraint_timeout: Annotated[
        float, typer.Option(help="Seconds that a schema or grammar may take to compile; at most 10.")
    ] = 10.0,
    response_store: Annotated[
        str,
        typer.Option(
            help="Database of stored responses: sqlite:///FILE, postgresql://USER@HOST/DB, or none.",
            envvar="PELLUCID_RESPONSE_STORE",
            show_envvar=True,
        ),
    ] = "",
    response_max_count: Annotated[int, typer.Option(help="Stored responses that are kept at most.")] = 10_000,
    response_max_age: Annotated[float, typer.Option(help="Days that an unused stored response is kept.")] = 30.0,
    tool_call_parser: Annotated[
        str, typer.Option(help="How the model writes tool calls; auto reads it off the chat template.")
    ] = "auto",
    reasoning_parser: Annotated[
        str, typer.Option(help="How the model marks its reasoning; auto reads it off template and vocabulary.")
    ] = "auto",
    reranker_template: Annotated[
        str,
        typer.Option(metavar="FILE", help="Jinja of query and document: /score and /rerank ask the model, yes or no."),
    ] = "",
    generation_config: Annotated[
        str, typer.Option(help="auto: sampling defaults that the model's makers recommend; none: OpenAI's.")
    ] = "auto",
    access_log: Annotated[bool, typer.Option("--access-log", help="Log a line of JSON per request.")] = False,
    request_log: Annotated[
        str, typer.Option(metavar="FILE", help="Append a line of JSON per request to this file.")
    ] = "",
    request_log_content: Annotated[
        bool, typer.Option("--request-log-content", help="Write requests and responses themselves there, too.")
    ] = False,
    ui: Annotated[bool, typer.Option(help="The engine room: a live page of the engine at /ui.")] = True,
    ui_control: Annotated[
        bool, typer.Option("--ui-control", help="Let the page pause and single-step the scheduler, for everybody.")
    ] = False,
    otlp_traces_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Send OpenTelemetry spans there (OTLP over HTTP; extra [otel]).")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a trace of every step and request that Perfetto opens.")
    ] = None,
    trace_max_size: Annotated[int, size_option("The trace grows no larger.")] = 1 << 30,
) -> None:
    """Serve a model over HTTP: OpenAI's API on /v1, metrics on /metrics."""
    from pellucid.server.options import ServerOptions
    from pellucid.server.run import serve as run_server

    options = ServerOptions(
        host=host,
        port=port,
        api_keys=tuple(api_key or ()),
        allow_unauthenticated=allow_unauthenticated,
        max_queue=max_queue,
        request_timeout_s=request_timeout or None,
        shutdown_timeout_s=shutdown_timeout,
        constraint_timeout_s=constraint_timeout,
        response_store=response_store,
        response_max_count=response_max_count,
        response_max_age_s=response_max_age * 24 * 3600,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        reranker_template=reranker_template,
        generation_config=generation_config,
        access_log=access_log,
        request_log=request_log,
        request_log_content=request_log_content,
        ui=ui,
        ui_control=ui_control,
        otlp_traces_endpoint=otlp_traces_endpoint,
        trace_file=trace,
        trace_max_bytes=trace_max_size,
    )
    with clean_errors():
        raise typer.Exit(run_server(config, options))
