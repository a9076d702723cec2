"""Command lines, read as the program would read them, without running them."""

import shlex

import typer

from deepfool.cli import app

ROOT = typer.main.get_command(app)


def _usage_error():
    """The class that is raised for a line that does not parse (typer may bring click along under its own name)."""
    try:
        ROOT.make_context("deepfool", ["--no-such-option"])
    except Exception as error:
        return next(kind for kind in type(error).__mro__ if kind.__name__ == "UsageError")
    raise AssertionError("an unknown option was taken")


Refused = _usage_error()


def walk(command=ROOT, path=("deepfool",)):
    """Every command and group, with the words that lead to it."""
    yield path, command
    for name, sub in getattr(command, "commands", {}).items():
        yield from walk(sub, (*path, name))


def find(words):
    """The command that these words (without `deepfool`) name, and the words after its name."""
    command = ROOT
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands:
            raise Refused(f"no such command: {words[0]}")
        command, words = command.commands[words[0]], words[1:]
    return command, words


def parse(line):
    """The context of a command line; raises `Refused` where the program would refuse it."""
    command, words = find(shlex.split(line)[1:])
    if hasattr(command, "commands"):  # options of a group act at once (--install-completion): only look for them
        if missing := set(words) - {option for parameter in command.params for option in parameter.opts}:
            raise Refused(f"no such option: {', '.join(missing)}")
        return None
    return command.make_context(command.name, words)
