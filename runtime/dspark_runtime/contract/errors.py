"""The few error classes of the project, and how a message shows what somebody else wrote.

Every message says where, found, wanted, what to do.

A command line prints the message on one line and exits with 2; a traceback means our bug.
"""


class DsparkError(Exception):
    """Base of every error that a user can cause and mend."""


class ConfigError(DsparkError):
    """An option or parameter is out of range, or options contradict each other."""


class CheckpointError(DsparkError):
    """A checkpoint folder or file cannot be used as it is."""


class GraphError(DsparkError):
    """A model asks for something the graph builder does not describe."""


class BuildError(DsparkError):
    """A backend could not compile or write an engine."""


class BundleError(DsparkError):
    """An engine bundle is missing, damaged, too new or does not fit this machine."""


class CapacityError(DsparkError):
    """A valid request that does not fit the limits of this bundle or runtime."""


class QueueFullError(CapacityError):
    """A request that would fit, but not now: as many wait already as the queue holds."""


def shown(value: object, limit: int = 80) -> str:
    """`value` for a message: quoted, on one line, nothing that steers a terminal, at most `limit` characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of too many digits, an object with a broken repr
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def label(name: str, limit: int = 120) -> str:
    """A name out of somebody's file: as it is where it is short and prints without spaces, else as `shown` shows it."""
    is_plain = name.isprintable() and " " not in name and 0 < len(name) <= limit
    return name if is_plain else shown(name, limit)


def one_line(message: str) -> str:
    """A whole message for a terminal: one line, characters that do not print escaped."""
    text = " ".join(message.split())
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
