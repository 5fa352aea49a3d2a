"""Run a job of TensorRT in a process of its own: its memory goes back with it, and its crash is one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from dspark_runtime.contract.errors import BuildError

WORKER = "dspark_trt.backends.tensorrt_worker"
MAX_LINE = 64 << 20
"""Characters of one answer; far above the description of any engine."""


def run_job(job: Mapping[str, object], progress: Callable[[str, float], None]) -> Any:
    """The `result` of the worker. Raises BuildError with its error, or with the last line that it left behind."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    answer: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=environment,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        try:
            json.dump(job, process.stdin)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it died before it read; what it left behind says why
        try:
            while line := process.stdout.readline(MAX_LINE):
                answer = _read(line, progress) or answer
        except BaseException:
            process.kill()
            raise
        process.wait()
        if "error" in answer:
            raise BuildError(answer["error"])
        if "result" not in answer or process.returncode:
            why = _last_words(complaints, process.returncode)
            raise BuildError(f"the process that runs {job['module']} failed: {why}")
        return answer["result"]


def _read(line: str, progress: Callable[[str, float], None]) -> dict[str, Any] | None:
    """A result or an error; None for progress, which is passed on, and for lines of others."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    if not isinstance(message, dict):
        return None
    if "progress" in message:
        phase, share = message["progress"]
        progress(phase, share)
        return None
    return message if message.keys() & {"result", "error"} else None


def _last_words(complaints: Any, code: int) -> str:
    complaints.seek(0)
    lines = [" ".join(line.split()) for line in complaints if line.strip()]
    if code < 0:
        why = f"killed by {signal.Signals(-code).name}"
        return f"{why} (out of memory?)" if code == -signal.SIGKILL else why
    return lines[-1][:400] if lines else f"exit status {code}"
