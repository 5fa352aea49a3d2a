"""The parts of benchmarks/decode.py: one file per question, each returns tables of plain numbers."""
