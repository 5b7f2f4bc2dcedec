"""`pellucid COMMAND`: each command is a file beside this one and imports what is heavy only when it runs."""

from __future__ import annotations

import sys

from pellucid import __version__


def main() -> None:
    if sys.argv[1:2] == ["engine"]:  # the engine process: no command line of its own to parse, and start-up counts
        from pellucid.engine.process import main as engine_main

        raise SystemExit(engine_main(sys.argv[2:]))
    if sys.argv[1:2] == ["grammars"]:  # likewise: a front end's process that tries constraints on output
        from pellucid.frontend.grammar_process import main as grammars_main

        raise SystemExit(grammars_main(sys.argv[2:]))
    build_app()()


def build_app():  # type: ignore[no-untyped-def]  # typer is imported late: `pellucid engine` does without it
    import typer

    from pellucid.cli import bench, chat, explain, generate, lessons, plan, pull, run_batch, serve

    app = typer.Typer(
        name="pellucid",
        help="A see-through LLM inference engine and server.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )

    def show_version(asked: bool) -> None:
        if asked:
            print(f"pellucid {__version__}")
            raise typer.Exit

    asked = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Show the version and exit.")

    @app.callback()
    def of_every_command(version: bool = asked) -> None:
        pass

    app.command(name="serve", epilog=serve.EXAMPLES)(serve.serve)
    app.command(name="generate", epilog=generate.EXAMPLES)(generate.generate)
    app.command(name="chat", epilog=chat.EXAMPLES)(chat.chat)
    app.command(name="run-batch", epilog=run_batch.EXAMPLES)(run_batch.run_batch)
    app.command(name="pull", epilog=pull.EXAMPLES)(pull.pull)
    app.command(name="plan", epilog=plan.EXAMPLES)(plan.plan)
    app.add_typer(explain.app, name="explain")
    app.add_typer(bench.app, name="bench")
    app.add_typer(lessons.app, name="lessons")
    return app
