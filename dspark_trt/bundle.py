"""Writing a bundle so that a half-written one is never seen.

Files go to a temporary folder beside the output, which is renamed at the end. A lock in that folder
tells a running build from a dead one, whose leavings the next build of the same output removes.
Knows no model and no graph.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dspark_runtime.contract import names
from dspark_runtime.contract.errors import BuildError, shown
from dspark_runtime.contract.manifest import FileEntry

LOCK = ".lock"
_CHUNK_BYTES = 4 * 2**20


@contextmanager
def new_bundle(output: Path) -> Iterator[Path]:
    """A folder to fill; renamed to `output` when the block ends well, removed when it does not.

    Raises BuildError when `output` is something else than a bundle or an empty folder, cannot be
    written, or the disk is full.
    """
    output = Path(os.path.abspath(output))  # noqa: PTH100  resolve() would follow a link at the output itself
    check_output(output)
    folder = output.with_name(f".{output.name}.building-{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_dead_builds(output)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with (folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
            (folder / LOCK).unlink()
            _replace(output, folder)
    except OSError as error:
        raise _write_error(output, error) from error
    finally:
        # After a rename there is nothing left to remove; after an error or an interrupt everything is.
        shutil.rmtree(folder, ignore_errors=True)


def check_output(output: Path) -> None:
    """BuildError unless `output` is absent, an empty folder, or a bundle that may be replaced."""
    try:
        str(output).encode()
    except UnicodeEncodeError:
        raise BuildError(
            f"output {shown(str(output), 200)} is not UTF-8, in which engines read names; give another name"
        ) from None
    try:
        _check_output(output)
    except OSError as error:
        raise _write_error(output, error) from None


def _check_output(output: Path) -> None:
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise BuildError(f"output {output} exists and is no folder; give the name of a new folder")
    held = sorted(path.name for path in output.iterdir()) if output.is_dir() else []
    if held and names.MANIFEST not in held:
        raise BuildError(
            f"output {output} is a folder without {names.MANIFEST} that holds {shown(held[0])}"
            f"{f' and {len(held) - 1} more' if len(held) > 1 else ''}; only bundles are replaced, give another folder"
        )
    # Replacing deletes: everything in the folder must be a file that a build or a later command has put there.
    own = _listed_files(output) | {names.MANIFEST, names.CALIBRATION, names.COST_TABLE} if held else set()
    if foreign := [name for name in held if name not in own or not (output / name).is_file()]:
        raise BuildError(
            f"output {output} holds {shown(foreign[0])}"
            f"{f' and {len(foreign) - 1} more' if len(foreign) > 1 else ''}, which its {names.MANIFEST} does not list "
            "as a file of a bundle; only bundles are replaced, give another folder"
        )


def _listed_files(bundle: Path) -> set[str]:
    """Files that the manifest of a bundle of any version lists; none where it is no such manifest."""
    try:
        found = json.loads((bundle / names.MANIFEST).read_bytes())
        if "format_version" not in found:
            return set()
        return {entry["path"] for entry in found["files"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return set()


def describe_files(folder: Path, report: Callable[[str], None]) -> tuple[FileEntry, ...]:
    """Name, size and SHA-256 of everything in `folder`, by name; the manifest and the lock aside."""
    entries = []
    for path in sorted(folder.iterdir()):
        if path.name not in (names.MANIFEST, LOCK):
            report(f"hash {path.name}")
            entries.append(FileEntry(path=path.name, size=path.stat().st_size, sha256=sha256(path)))
    return tuple(entries)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _replace(output: Path, folder: Path) -> None:
    old = output.with_name(f".{output.name}.replaced-{os.getpid()}")
    try:
        if output.is_dir() and any(output.iterdir()):
            output.rename(old)
        folder.rename(output)
    except BaseException:  # an interrupt too: the bundle that was there comes back
        if old.is_dir() and not output.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_dead_builds(output: Path) -> None:
    for folder in _leavings(output, "building"):
        if not _is_running(folder):
            shutil.rmtree(folder, ignore_errors=True)
    # A build that died between its two renames: what it replaced is the bundle that was there before.
    for folder in _leavings(output, "replaced"):
        if output.exists():
            shutil.rmtree(folder, ignore_errors=True)
        else:
            folder.rename(output)


def _leavings(output: Path, what: str) -> list[Path]:
    """Folders that builds of exactly this output made; not by a glob, because `*` may be the name of a folder."""
    made = re.compile(rf"\.{re.escape(output.name)}\.{what}-[0-9]+")
    return [path for path in output.parent.iterdir() if made.fullmatch(path.name)]


def _is_running(folder: Path) -> bool:
    """Whether the build that fills `folder` still holds its lock."""
    try:
        with (folder / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _write_error(output: Path, error: OSError) -> BuildError:
    todo = {
        errno.ENOSPC: "free some space or give another folder",
        errno.EDQUOT: "free some space or give another folder",
        errno.ENAMETOOLONG: "give a shorter name",
        errno.EACCES: "give a folder that you may write",
        errno.EROFS: "give a folder that you may write",
    }.get(error.errno or 0, "give another folder")
    return BuildError(f"output {output} cannot be written: {error.strerror or error}; {todo}")
