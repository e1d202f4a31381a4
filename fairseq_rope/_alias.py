"""Imports this package under its own name when fairseq has found it under another.

fairseq names a plugin after the last part of ``--user-dir``: a link of another name, or the root of a
checkout, would otherwise become a second copy of the package, whose models register twice.
"""

import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path

NAME = "fairseq_rope"


def adopt(alias, folder):
    """Import the package in ``folder`` as ``fairseq_rope`` and let ``alias`` (and its submodules) mean it.

    Args:
        alias: name of the module that is being imported instead; may be ``fairseq_rope`` itself, for a
            checkout whose root has that name.
        folder: the package's folder.
    """
    package = sys.modules.get(NAME)
    if package is None or alias == NAME:
        package = _load(Path(folder).resolve())
    # fairseq imports every file of models/ under the alias afterwards: it shall find them imported
    for module in pkgutil.iter_modules([str(Path(path) / "models") for path in package.__path__]):
        importlib.import_module(f"{NAME}.models.{module.name}")
    for name in [name for name in sys.modules if name == NAME or name.startswith(NAME + ".")]:
        sys.modules[alias + name.removeprefix(NAME)] = sys.modules[name]


def _load(folder):
    spec = importlib.util.spec_from_file_location(
        NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    package = importlib.util.module_from_spec(spec)
    before = sys.modules.get(NAME)
    sys.modules[NAME] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        if before is None:
            del sys.modules[NAME]
        else:
            sys.modules[NAME] = before
        raise
    return package
