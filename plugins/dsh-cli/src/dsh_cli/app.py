"""
The commands and their options. What a command does is in a module of its own, imported when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from dsh_cli import exits

__all__ = ["run_command"]

F = TypeVar("F", bound=Callable[..., Any])

_COMPLETION = "_DSH_COMPLETE"
_CONTEXT = {"help_option_names": ["-h", "--help"]}


def run_command(argv: list[str]) -> int:
    """Run one command line and return its exit code; no error leaves this as a traceback."""
    try:
        code = _invoke(argv)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        return exits.INTERRUPTED
    except click.ClickException as wrong:
        wrong.show(sys.stderr)
        return exits.USAGE
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        return _broken_pipe()
    except Exception as error:  # noqa: BLE001 - the last place where it can become a line instead of a traceback
        return _failed(error)
    return code if isinstance(code, int) else exits.COMPLETED


def _invoke(argv: list[str]) -> Any:
    if _COMPLETION in os.environ:
        return cli.main(args=argv, prog_name="dsh", complete_var=_COMPLETION)
    # Not `cli.main`: it would turn a broken pipe into exit code 1.
    with cli.make_context("dsh", argv) as context:
        return cli.invoke(context)


def _broken_pipe() -> int:
    # The reader is gone; anything still buffered must not fail again while the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return exits.BROKEN_PIPE


def _failed(error: Exception) -> int:
    from dsh_cli.terminal import Terminal

    if os.environ.get("DSH_DEBUG"):
        raise error
    Terminal().error(str(error) or type(error).__name__)
    known = type(error).__module__.startswith("dsh_") or isinstance(error, ValueError | OSError)
    if not known:
        Terminal().note(f"({type(error).__name__}: a fault of dsh or a plugin; DSH_DEBUG=1 shows where)")
    return exits.code_of_error(error) if known else exits.FAILED


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    from importlib.metadata import version

    if wanted:
        click.echo(f"dsh {version('dsh-core')}")
        ctx.exit()


@click.group(context_settings=_CONTEXT, no_args_is_help=True)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, help="Show the version.", callback=_show_version
)
def cli() -> None:
    """dsh: an agent harness made of plugins."""
    from dsh_cli.logs import show_logs
    from dsh_cli.terminal import Terminal

    show_logs(Terminal())


def _run_options(command: F) -> F:
    options = [
        click.option("--model", "-m", help="Model as provider/model."),
        click.option("-p", "plugins", multiple=True, metavar="no:NAME", help="Switch a plugin off by name."),
        click.option(
            "--permission-mode",
            type=click.Choice(["ask", "accept-edits", "plan", "full-trust"]),
            help="How the permission gate decides where no rule does.",
        ),
        click.option("--max-steps", type=click.IntRange(min=1), help="Steps a turn may have."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@cli.command(context_settings=_CONTEXT)
@click.argument("prompt", required=False)
@click.option("--format", "form", type=click.Choice(["text", "json", "stream-json"]), default="text")
@click.option("--session", help="Create or resume the session of this name.")
@click.option("--resume", "resume", is_flag=False, flag_value="", help="Only resume: the named session, or the last.")
@_run_options
def run(prompt: str | None, form: str, session: str | None, resume: str | None, **options: Any) -> int:
    """Run one PROMPT (also from standard input) and print the answer."""
    from dsh_cli.running import run_prompt
    from dsh_cli.settings import Settings

    if session is not None and resume is not None:
        raise click.UsageError("--session and --resume exclude each other")
    return run_prompt(prompt, form, session, resume, Settings(**options))


@cli.command(context_settings=_CONTEXT)
@click.option("--session", help="Create or resume the session of this name.")
@_run_options
def chat(session: str | None, **options: Any) -> int:
    """Talk with an agent."""
    from dsh_cli.chatting import chat_in_terminal
    from dsh_cli.settings import Settings

    return chat_in_terminal(session, None, Settings(**options))


@cli.command(context_settings=_CONTEXT)
@click.argument("session", required=False)
@_run_options
def resume(session: str | None, **options: Any) -> int:
    """Go on with SESSION, or with the last one of this directory."""
    from dsh_cli.chatting import chat_in_terminal
    from dsh_cli.settings import Settings

    return chat_in_terminal(None, session or "", Settings(**options))


@cli.group(context_settings=_CONTEXT)
def sessions() -> None:
    """See stored sessions."""


@sessions.command("list", context_settings=_CONTEXT)
@click.option("--all", "everywhere", is_flag=True, help="Sessions of every directory, not only of this one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def sessions_list(everywhere: bool, as_json: bool) -> int:
    """List stored sessions, the newest first."""
    from dsh_cli.stored import list_sessions

    return list_sessions(everywhere, as_json)


@sessions.command("show", context_settings=_CONTEXT)
@click.argument("session")
@click.option("--events", is_flag=True, help="The raw events, one JSON object a line.")
def sessions_show(session: str, events: bool) -> int:
    """Show SESSION readably."""
    from dsh_cli.stored import show_session

    return show_session(session, events)


@sessions.command("repair", context_settings=_CONTEXT)
@click.argument("session")
def sessions_repair(session: str) -> int:
    """Save every readable record of a damaged SESSION; the log as it was is kept beside it."""
    from dsh_cli.stored import repair_session

    return repair_session(session)


@cli.group(context_settings=_CONTEXT, invoke_without_command=True)
@click.pass_context
def plugins(ctx: click.Context) -> int | None:
    """See the plugins."""
    if ctx.invoked_subcommand is None:
        from dsh_cli.inspecting import list_plugins

        return list_plugins(as_json=False)
    return None


@plugins.command("list", context_settings=_CONTEXT)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def plugins_list(as_json: bool) -> int:
    """List the plugins: what they are, whether they are loaded, and why not."""
    from dsh_cli.inspecting import list_plugins

    return list_plugins(as_json=as_json)


@plugins.command("info", context_settings=_CONTEXT)
@click.argument("name")
def plugins_info(name: str) -> int:
    """Show one plugin."""
    from dsh_cli.inspecting import show_plugin

    return show_plugin(name)


@cli.command(context_settings=_CONTEXT)
@click.argument("name", required=False)
def hooks(name: str | None) -> int:
    """Show the hooks and who implements them, in effective order."""
    from dsh_cli.inspecting import show_hooks

    return show_hooks(name)


@cli.group("config", context_settings=_CONTEXT)
def config_group() -> None:
    """See the configuration."""


@config_group.command("show", context_settings=_CONTEXT)
def config_show() -> int:
    """Show each value that is set and where it comes from."""
    from dsh_cli.inspecting import show_config

    return show_config()


@config_group.command("explain", context_settings=_CONTEXT)
@click.argument("key")
def config_explain(key: str) -> int:
    """Show where the value of KEY comes from."""
    from dsh_cli.inspecting import explain_config

    return explain_config(key)


@cli.command(context_settings=_CONTEXT)
@click.option("--keep", is_flag=True, help="Keep the workspace and the log afterwards.")
def demo(keep: bool) -> int:
    """Watch a real turn, a kill and a resume: no key, no network."""
    from dsh_cli.demo.show import show_demo

    return show_demo(keep)
