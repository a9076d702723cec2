"""Commands, run in this process."""

from typer.testing import CliRunner

from deepfool.cli import app


def call(*words, code=0):
    """What a command line printed; an error that is no ending of the program is raised."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done
