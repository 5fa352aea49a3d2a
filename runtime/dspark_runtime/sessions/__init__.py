"""Engines: bind memory, run a step. One file per engine, and what all of them share."""
