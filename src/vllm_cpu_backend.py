"""What the entry points name, of the host's plugins and of torch's: the `cpu_backend` that is
installed beside this file.

`python -m` and `python -c` look for packages in the current folder first.  Where that is a clone
of a commit whose package lay at its top, `import cpu_backend` would find sources without a library.
No such folder has a module of this name, and once the right package is loaded, its modules come
from where it is, in this process and in those it forks; what it spawns begins here again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

NAME = "cpu_backend"
PACKAGE = Path(__file__).with_name(NAME)


def _package() -> ModuleType:
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            NAME, PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[NAME] = package
        spec.loader.exec_module(package)
    return sys.modules[NAME]


def register() -> str | None:
    """See :func:`cpu_backend.register`."""
    result: str | None = _package().register()
    return result


def register_general() -> None:
    """See :func:`cpu_backend.register_general`."""
    _package().register_general()


def torch_imported() -> None:
    """See :func:`cpu_backend.torch_imported`.  torch calls this in every program that imports it,
    those that have nothing to do with the host among them."""
    if "vllm.env_override" in sys.modules:
        # torch would not be imported.  What fails here fails in register(), too, which says why.
        with contextlib.suppress(Exception):
            _package().torch_imported()
