"""Train one cell or, with -m, a matrix of them. `python train.py --help` lists the choices."""

import sys

try:
    from scalewise.cli.application import run_training
except ModuleNotFoundError as missing:
    if missing.name != "scalewise":
        raise
    sys.stderr.write(
        f"error: scalewise is not installed for {sys.executable}; allowed: the environment of "
        "make setup: . .venv/bin/activate\n"
    )
    raise SystemExit(2) from None

if __name__ == "__main__":
    raise SystemExit(run_training())
