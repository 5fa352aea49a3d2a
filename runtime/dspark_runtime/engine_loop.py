"""The engine's thread: takes jobs and aborts from others, steps while there is work, tells readers what came.

The engine is touched by this thread alone. Others leave commands, which are carried out between two steps.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable

from dspark_runtime.contract.errors import ConfigError, DsparkError, QueueFullError
from dspark_runtime.engine import Engine
from dspark_runtime.request import Request
from dspark_runtime.tickets import Ticket, Waker

log = logging.getLogger(__name__)

CLOSED = "this LLM is closed; make another one"
DRAINING = "this LLM takes no more requests: it finishes those it has (drain)"


class EngineLoop:
    """Runs an engine in a thread that starts with the first job. All methods may be called from any thread."""

    def __init__(self, engine: Engine, max_waiting: int | None = None) -> None:
        """max_waiting: most requests beyond those that have room in a slot; None: any number."""
        self._engine = engine
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._added: deque[Ticket] = deque()
        self._aborted: deque[Ticket] = deque()
        """Appended to without the lock: garbage collection may do it anywhere, even where the lock is held."""
        self._unfinished = 0
        """Requests that were taken and have not ended."""
        self._tickets: dict[int, tuple[Ticket, int]] = {}
        """By request id: its ticket and its place there."""
        self._thread: threading.Thread | None = None
        self._draining = False
        self._closing = False
        self._broken: str | None = None

    @property
    def num_unfinished(self) -> int:
        return self._unfinished

    def submit(self, tickets: Iterable[Ticket]) -> None:
        """Take jobs, all or none. Raises QueueFullError when they do not fit in the queue, ConfigError when the loop
        is closed or drains, DsparkError when its thread broke."""
        tickets = list(tickets)
        with self._changed:
            self._check_open()
            count = sum(ticket.unfinished for ticket in tickets)
            if self._max_waiting is not None:
                room = self._engine.num_slots + self._max_waiting - self._unfinished
                if count > room:
                    with self._engine.metrics.lock:
                        self._engine.metrics.refused += count
                    waiting = max(0, self._unfinished - self._engine.num_slots)
                    raise QueueFullError(
                        f"{waiting} requests wait already and {count} more came, the queue holds {self._max_waiting} "
                        "(max_waiting); try again later"
                    )
            self._unfinished += count
            self._added.extend(tickets)
            if self._thread is None:
                # A daemon: a program that forgets to close must still end.
                self._thread = threading.Thread(target=self._run, name="dspark-engine", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def abort(self, ticket: Ticket) -> None:
        """End a job soon, wherever it is; nothing happens when it has ended. Returns at once."""
        self._aborted.append(ticket)

    def drain(self, timeout: float | None = None) -> bool:
        """Take no more jobs and wait for those there are; False when `timeout` seconds were not enough."""
        with self._changed:
            self._draining = True
            return self._changed.wait_for(lambda: self._unfinished == 0 or self._closing, timeout)

    def close(self) -> None:
        """End what still runs, and the thread. Closing twice is fine."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _check_open(self) -> None:
        if self._broken is not None:
            raise DsparkError(self._broken)
        if self._closing:
            raise ConfigError(CLOSED)
        if self._draining:
            raise ConfigError(DRAINING)

    def _run(self) -> None:
        failure: DsparkError = ConfigError(CLOSED)
        try:
            while self._obey():
                self._deliver(self._step())
        except BaseException as error:
            failure = DsparkError(f"the engine's thread ended: {type(error).__name__}: {error}; make another LLM")
            log.exception("the engine's thread ended")
        finally:
            self._end(failure)

    def _obey(self) -> bool:
        """Wait for work and carry out commands; False when the loop is to end."""
        with self._changed:
            while not (self._added or self._closing or self._engine.num_unfinished):
                # Nothing runs, so there is nothing to abort.
                self._aborted.clear()
                self._changed.wait()
            if self._closing:
                return False
            added = list(self._added)
            self._added.clear()
        for ticket in added:
            for index, sample in enumerate(ticket.job.samples):
                self._tickets[sample.request.request_id] = (ticket, index)
                self._engine.add(sample.request, sample.detokenizer)
        while self._aborted:
            self._end_ticket(self._aborted.popleft())
        return True

    def _end_ticket(self, ticket: Ticket) -> None:
        ended = [request for request in ticket.job.requests if not request.is_finished]
        for request in ended:
            # One that never came here is nobody's: its caller was interrupted before.
            if request.request_id in self._tickets:
                self._engine.abort(request)
        self._deliver(ended)

    def _step(self) -> list[Request]:
        try:
            return self._engine.step()
        except Exception as error:
            # Not the model's: a step that fails there ends its own requests. This is our bug, and all we can trust
            # afterwards is an engine without requests.
            log.exception("a step failed outside the model")
            message = f"the step failed: {type(error).__name__}: {error}"
            return [
                request for ticket, _ in list(self._tickets.values()) for request in self._fail_job(ticket, message)
            ]

    def _fail_job(self, ticket: Ticket, message: str) -> list[Request]:
        failed = [request for request in ticket.job.requests if not request.is_finished]
        for request in failed:
            self._engine.fail(request, message)
        return failed

    def _deliver(self, requests: Iterable[Request]) -> None:
        """Write what requests got to their tickets, and wake the readers, each waker once."""
        waking: dict[Waker, list[Ticket]] = {}
        ended = 0
        for request in requests:
            found = self._tickets.get(request.request_id)
            if found is None:
                continue
            ticket, index = found
            if ticket.streams:
                try:
                    ticket.write(index)
                except Exception as error:
                    log.exception("request %d: its text cannot be made", request.request_id)
                    self._engine.fail(request, f"its text cannot be made: {type(error).__name__}: {error}")
            if request.is_finished:
                del self._tickets[request.request_id]
                ticket.unfinished -= 1
                ended += 1
            if ticket.streams or ticket.is_done:
                waking.setdefault(ticket.waker, []).append(ticket)
        if ended:
            with self._changed:
                self._unfinished -= ended
                if self._unfinished == 0:
                    self._changed.notify_all()
        for waker, tickets in waking.items():
            self._wake(waker, tickets)

    def _wake(self, waker: Waker, tickets: list[Ticket]) -> None:
        try:
            waker(tickets)
        except RuntimeError:  # an event loop that was closed: nobody will read on
            for ticket in tickets:
                self._aborted.append(ticket)

    def _end(self, failure: DsparkError) -> None:
        """Nothing runs any more: tell everybody who waits, and let go of the engine's requests."""
        with self._changed:
            self._closing = True
            if not isinstance(failure, ConfigError):
                self._broken = str(failure)
            entered = dict.fromkeys(ticket for ticket, _ in self._tickets.values())
            tickets = [*entered, *self._added]
            self._added.clear()
            self._tickets.clear()
            self._unfinished = 0
            self._changed.notify_all()
        for ticket in entered:
            for request in ticket.job.requests:
                try:
                    self._engine.abort(request)
                except Exception:
                    log.exception("request %d cannot be taken out", request.request_id)
        for ticket in tickets:
            ticket.failure = failure
            self._wake(ticket.waker, [ticket])
