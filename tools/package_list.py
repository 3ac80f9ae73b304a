"""What a list of pip's asks for."""

from __future__ import annotations

from pathlib import Path


def package_list(path: Path) -> list[str]:
    """The requirements of a file, those of the files that it names with -r in their place."""
    found = []
    for line in path.read_text().splitlines():
        if line.startswith("-r "):
            found += package_list(path.parent / line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            found.append(line)
    return found
