"""Benchmarks of single operators; each module measures one, in one process, things that are compared in turn."""
