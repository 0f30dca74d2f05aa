"""Train one cell or, with -m, a matrix of them. `python train.py --help` lists the choices."""

from scalewise.cli.hydra_main import train

if __name__ == "__main__":
    raise SystemExit(train())
