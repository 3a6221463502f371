# Describes the environment of this interpreter. Its argument is a JSON object; the answer is one line, after PREFIX.
import importlib
import importlib.metadata
import json
import platform
import sys
import sysconfig

PREFIX = "rloom-environment: "


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def failure(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def devices() -> list[str]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return names or [f"{torch.get_num_threads()} threads of the processor"]


asked = json.loads(sys.argv[1])
failures = {name: failure(name) for name in asked["imports"]}
answer = {
    "python": platform.python_version(),
    "modules": sysconfig.get_paths()["purelib"],
    "packages": {name: version(name) for name in asked["packages"]},
    "failures": failures,
    "requirements": [],
    "devices": [],
}
if asked["requirements_of"]:
    answer["requirements"] = importlib.metadata.requires(asked["requirements_of"]) or []
if asked["devices"] and failures.get("torch") is None:
    answer["devices"] = devices()
print(PREFIX + json.dumps(answer), flush=True)
