"""The command line; `hotset.cli:main` is its entry point."""

from hotset.cli.app import main

__all__ = ["main"]
