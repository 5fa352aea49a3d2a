"""What `dspark inspect` shows of engines that were compiled ahead of time: targets, profiles, memory."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from dspark_runtime.contract.compiled import CompiledInfo, Profile, cache_sizes
from dspark_runtime.contract.manifest import Manifest

MIB = 2**20


def compiled_tables(manifest: Manifest) -> list[Table]:
    """Two tables, or none for a bundle whose graphs run as they are. Cells are plain text."""
    engines = [("target", manifest.target.compiled)]
    if manifest.draft is not None:
        engines.append(("draft", manifest.draft.engine.compiled))
    compiled = [(name, info) for name, info in engines if info is not None]
    if not compiled:
        return []
    slots = manifest.limits.max_batch_size
    return [_engines(compiled, slots), _profiles(compiled)]


def device_memory_bytes(infos: Sequence[CompiledInfo], slots: int) -> int | None:
    """Weights, caches of all slots and the largest step of each engine; None where a builder kept a number back.

    A cache that several engines name is the same memory and counted once.
    """
    total = 0
    caches: dict[str, int] = {}
    for info in infos:
        steps = [profile.device_memory_bytes for profile in info.profiles]
        known = [size for size in steps if size is not None]
        if info.weights_bytes is None or len(known) < len(steps):
            return None
        total += info.weights_bytes + max(known)
        caches |= cache_sizes(info, slots)
    return total + sum(caches.values())


def _engines(engines: list[tuple[str, CompiledInfo]], slots: int) -> Table:
    table = Table(title="compiled engines", title_justify="left")
    for heading in ("engine", "library", "built for"):
        table.add_column(heading)
    for heading in ("weights", f"caches of {slots}", "device memory", "build time", "build peak"):
        table.add_column(heading, justify="right")
    for name, info in engines:
        targets = ", ".join(info.compute_capabilities) + (f" ({info.gpu})" if info.gpu is not None else "")
        table.add_row(
            Text(name),
            Text(f"{info.library} {info.library_version}"),
            Text(targets),
            Text(_size(info.weights_bytes)),
            Text(_size(sum(cache_sizes(info, slots).values()))),
            Text(_size(device_memory_bytes([info], slots))),
            Text(f"{info.build_ms / 1000:.1f} s"),
            Text(_size(info.peak_memory_bytes)),
        )
    together = device_memory_bytes([info for _, info in engines], slots)
    if len(engines) > 1:
        table.add_row(Text("all, shared caches once"), "", "", "", "", Text(_size(together)), "", "")
    return table


def _profiles(engines: list[tuple[str, CompiledInfo]]) -> Table:
    table = Table(title="profiles (smallest..largest size of each axis)", title_justify="left")
    for heading in ("engine", "profile", "sizes"):
        table.add_column(heading)
    table.add_column("step memory", justify="right")
    for name, info in engines:
        for profile in info.profiles:
            cells = (name, profile.name, _sizes(profile), _size(profile.device_memory_bytes))
            table.add_row(*(Text(cell) for cell in cells))
    return table


def _sizes(profile: Profile) -> str:
    return ", ".join(f"{entry.axis} {entry.min}..{entry.max}" for entry in profile.ranges)


def _size(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / MIB:,.1f} MiB"
