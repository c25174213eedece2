"""What to expect before a model runs: what this machine can do, what goes where, and how fast it will decode."""
