"""The few error classes of the project. Every message says where, found, wanted, what to do.

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
