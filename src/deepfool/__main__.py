"""`python -m deepfool` is the command line."""

from deepfool.cli import main

if __name__ == "__main__":
    main()
