"""Functions from files."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from .errors import RefusedError
from .reward_model import RewardModel

REWARD_MODEL = "reward_model:"


def load(name: str) -> Any:
    """Loads `file.py:name`, or `reward_model:OPTIONS`, an object in JSON. The folder of the file is searched for imports."""
    if name.startswith(REWARD_MODEL):
        return RewardModel(**json.loads(name.removeprefix(REWARD_MODEL))).score
    path, _, attribute = name.rpartition(":")
    file = Path(path).absolute()
    if not file.is_file():
        raise RefusedError(f"the file {path} does not exist")
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module_name = file.stem
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise RefusedError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise RefusedError(f"{path} cannot be imported") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
            known = ", ".join(names) if names else "no functions"
            raise RefusedError(f"{path} has no `{attribute}`; it has {known}")
        found = getattr(found, part)
    return found
