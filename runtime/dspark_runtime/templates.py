"""The caller's side of template_worker: a process that renders chat templates, started when first needed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark_runtime import template_worker
from dspark_runtime.contract.errors import BundleError, ConfigError

GRACE_SECONDS = 3.0
"""Beyond the time of a rendering, for the process to start; it ends itself in most cases."""
MAX_REPLY_BYTES = 1 << 28


class TemplateRenderer:
    """Renders in one process that is kept, replaced when it dies and killed with its owner. Safe between threads.

    Where the system cannot limit a process (no `resource` module), renders here, with the sandbox's limits alone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, template: str, variables: Mapping[str, Any], seconds: float) -> str:
        """The text. BundleError where the template is no program, ConfigError where it fails on the variables."""
        request = {"template": template, "variables": variables, "seconds": seconds}
        try:
            line = json.dumps(request, default=_plain).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"messages and template variables must be values of JSON: {error}") from None
        if template_worker.HAS_LIMITS:
            with self._lock:
                reply = self._ask(line, seconds)
        else:
            reply = template_worker.answer(json.loads(line), {})
        if "uncompiled" in reply:
            raise BundleError(f"chat template cannot be compiled: {reply['uncompiled']}")
        if "failed" in reply:
            raise ConfigError(f"chat template {reply['failed']}")
        return reply["text"]

    def _ask(self, line: bytes, seconds: float) -> dict[str, str]:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds + GRACE_SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            reply = process.stdout.readline(MAX_REPLY_BYTES)
            answer: dict[str, str] = json.loads(reply)
            return answer
        except (OSError, ValueError):
            self._process = None
            _stop(process)
            why = f"took more than {seconds:g} s" if late.is_set() else f"ended its process ({process.returncode})"
            raise ConfigError(f"chat template failed on the messages: it {why}") from None
        except BaseException:  # an interrupt: the answer to this request must not meet the next one
            self._process = None
            _stop(process)
            raise
        finally:
            timer.cancel()

    def _start(self) -> subprocess.Popen[bytes]:
        # By its path, since `-m` would import the whole package first; -P keeps our modules from hiding Python's.
        command = [sys.executable, "-P", str(Path(template_worker.__file__))]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"cannot start the process that renders chat templates ({error})") from None
        weakref.finalize(self, _stop, process)
        return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was not yet written has no reader
                pipe.close()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is none")
