"""`python -m deepfool` is the command line."""

from deepfool.cli import main

main()
