"""Compile checkpoints into an engine bundle: `python build_engines.py --help`."""

from dspark_trt.cli import main

if __name__ == "__main__":
    raise SystemExit(main(prog="build_engines.py"))
