"""Compares the fields that the stand-ins accept and send with the sources of the packages: check.py vllm|sglang PACKAGES

PACKAGES is the folder that has the package, such as `site-packages`. Nothing of it is imported.
"""

import ast
import json
import sys
from pathlib import Path


def load(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def class_fields(module: ast.Module, name: str) -> dict[str, ast.expr | None]:
    """Annotated fields of a class and of its bases in the same file, with their defaults."""
    found = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    if name not in found:
        return {}
    fields: dict[str, ast.expr | None] = {}
    for base in found[name].bases:
        if isinstance(base, ast.Name):
            fields |= class_fields(module, base.id)
    for node in found[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields[node.target.id] = node.value
    return fields


def literal(module: ast.Module, name: str) -> set[str]:
    """Values of `name = Literal[…]` or of a field `name: Literal[…]`."""
    for node in ast.walk(module):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return {value.value for value in ast.walk(node.value) if isinstance(value, ast.Constant)}
    return set()


def body_arguments(module: ast.Module, path: str) -> set[str]:
    """Arguments of the function behind a route."""
    for node in ast.walk(module):
        if isinstance(node, ast.AsyncFunctionDef):
            routes = [arg.value for call in node.decorator_list if isinstance(call, ast.Call) for arg in call.args if isinstance(arg, ast.Constant)]
            if path in routes:
                return {argument.arg for argument in node.args.args}
    return set()


class Check:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def subset(self, place: str, used: list[str], known: object) -> None:
        missing = [name for name in used if name not in known]  # type: ignore[operator]
        if missing:
            self.problems.append(f"{place} has no {', '.join(missing)}")

    def require(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)


def vllm(fields: dict, packages: Path, check: Check) -> None:
    root = packages / "vllm"
    protocol = load(root / "entrypoints/scale_out/token_in_token_out/protocol.py")
    rl = load(root / "entrypoints/rl/online/api_router.py")
    routers = "\n".join(file.read_text() for file in (root / "entrypoints").rglob("*.py"))
    for endpoint, used in fields["endpoints"].items():
        path = endpoint.split(" ")[1]
        check.require(f'"{path}"' in routers, f"no endpoint {path}")
        if path.endswith("/generate"):
            check.subset("GenerateRequest", used, class_fields(protocol, "GenerateRequest"))
        elif path.endswith("_lora_adapter"):
            name = "LoadLoRAAdapterRequest" if "/load" in path else "UnloadLoRAAdapterRequest"
            check.subset(name, used, class_fields(load(root / "entrypoints/serve/lora/protocol.py"), name))
        elif path in ("/update_weights", "/finish_weight_update", "/init_weight_transfer_engine"):
            check.subset(path, used, body_arguments(rl, path))
        else:
            check.require(all(f'"{name}"' in routers for name in used), f"{path} does not read {used}")
    check.subset("SamplingParams", fields["sampling_params"], class_fields(load(root / "sampling_params.py"), "SamplingParams"))
    check.subset("answer", fields["answer"], class_fields(protocol, "GenerateTokensResponse"))
    card = class_fields(load(root / "entrypoints/openai/models/protocol.py"), "ModelCard")
    card |= class_fields(load(root / "entrypoints/serve/engine/protocol.py"), "ModelCard")
    check.subset("ModelCard", fields["model"], card)
    check.subset("choice", fields["choice"], class_fields(protocol, "GenerateTokensChoice"))
    check.subset("log-probability", fields["logprob"], class_fields(protocol, "GenerateLogProbsContent"))
    check.subset("span", fields["span"], class_fields(load(root / "outputs.py"), "WeightVersionSpan"))
    transfer = root / "distributed/weight_transfer"
    for backend, name in (("nccl", "NCCL"), ("ipc", "IPC")):
        engine = load(transfer / f"{backend}_engine.py")
        common = load(transfer / "nccl_common.py") if backend == "nccl" else engine
        init, update = f"{name}WeightTransferInitInfo", f"{name}WeightTransferUpdateInfo"
        check.subset(init, fields[f"{backend}_init"], class_fields(common, init))
        check.subset(update, fields[f"{backend}_update"], class_fields(engine, update))
    sleep = load(root / "entrypoints/serve/dev/sleep/api_router.py")
    check.subset("/sleep", fields["sleep_parameters"], body_arguments(sleep, "/sleep"))
    worker = (root / "v1/worker/gpu_worker.py").read_text()
    check.require(all(f'"{tag}"' in worker for tag in fields["wake_tags"]), "/wake_up has other tags")
    check.require('"tags"' in ast.unparse(sleep).replace("'", '"'), "/wake_up has no tags")
    own = load(Path(__file__).parents[4] / "python/rloom/vllm/extension.py")
    for place, name in (("init_info", "FileInit"), ("update_info", "FileUpdate")):
        check.subset(name, fields[place], class_fields(own, name))
    modes = literal(load(root / "v1/engine/__init__.py"), "PauseMode")
    check.subset("PauseMode", fields["pause_modes"], modes)


def sglang(fields: dict, packages: Path, check: Check) -> None:
    root = packages / "sglang/srt"
    structs = load(root / "managers/io_struct.py")
    server = (root / "entrypoints/http_server.py").read_text()
    manager = (root / "managers/tokenizer_manager.py").read_text() + (root / "utils/weight_versions.py").read_text()
    for endpoint, used in fields["endpoints"].items():
        path = endpoint.split(" ")[1]
        check.require(f'"{path}"' in server, f"no endpoint {path}")
        if endpoint in fields["classes"]:
            name = fields["classes"][endpoint]
            check.subset(name, used, class_fields(structs, name))
    for name, value in fields["defaults"].items():
        owner, field = name.split(".")
        default = class_fields(structs, owner).get(field)
        check.require(isinstance(default, ast.Constant) and default.value == value, f"{name} is not {value} by default")
    params = class_fields(load(root / "sampling/sampling_params.py"), "SamplingParams")
    check.subset("SamplingParams", fields["sampling_params"], params)
    check.subset("meta_info", fields["meta_info"], {name for name in fields["meta_info"] if f'"{name}"' in manager})
    check.subset("answer", fields["answer"], {name for name in fields["answer"] if f'"{name}"' in manager})
    modes = {node.value for node in ast.walk(structs) if isinstance(node, ast.Constant)}
    check.subset("PauseGenerationReqInput.mode", fields["pause_modes"], modes)


def main() -> None:
    package, packages = sys.argv[1:]
    fields = json.loads((Path(__file__).parent / f"{package}.json").read_text())
    check = Check()
    {"vllm": vllm, "sglang": sglang}[package](fields, Path(packages), check)
    print("\n".join(check.problems) or f"the fields are those of {fields['package']}")
    sys.exit(bool(check.problems))


main()
