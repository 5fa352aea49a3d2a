"""The process that holds TensorRT: `python -m dspark_trt.backends.tensorrt_worker`, driven by tensorrt_process.

A job comes as JSON on stdin. Lines of JSON go to stdout, each an object with one key: `progress` while it works, then
`result` or `error`. Other lines there are the library's and mean nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from dspark_runtime.contract.errors import DsparkError
from dspark_runtime.contract.manifest import Manifest, parse_object
from dspark_trt.backends.tensorrt_builder import EngineJob, build_engine, supported_capabilities
from dspark_trt.backends.tensorrt_profiles import make_profiles


def say(**message: object) -> None:
    """One line, in one write, so that lines of the library cannot cut into it."""
    os.write(sys.stdout.fileno(), f"\n{json.dumps(message)}\n".encode())


def run(job: dict[str, Any]) -> None:
    trt = importlib.import_module(job["module"])
    if job["task"] == "describe":
        say(result={"version": trt.__version__, "compute_capabilities": list(supported_capabilities(trt))})
        return
    manifest = parse_object(json.loads(job["manifest"]), Manifest, "manifest")
    engine_job = EngineJob(
        graph=Path(job["graph"]),
        engine=Path(job["engine"]),
        role=job["role"],
        manifest=manifest,
        profiles=make_profiles(manifest, job["role"], job["prefill_chunk"]),
        compute_capabilities=tuple(job["compute_capabilities"]),
        plugins=tuple(Path(path) for path in job["plugins"]),
        inspect=Path(job["inspect"]) if job["inspect"] is not None else None,
        library=job["library"],
    )
    info = build_engine(trt, engine_job, lambda phase, share: say(progress=[phase, share]))
    say(result=dataclasses.asdict(info))


def main() -> None:
    try:
        run(json.load(sys.stdin))
    except DsparkError as error:
        say(error=str(error))


if __name__ == "__main__":
    main()
