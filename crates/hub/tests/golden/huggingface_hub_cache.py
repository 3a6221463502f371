"""Downloads from a hub, or finds what is in the cache, with Python's `huggingface_hub`.

The test `python::caches_are_shared_with_huggingface_hub` runs it against the emulated hub, in both directions:

    pip install huggingface_hub==2.4.0
    RLOOM_PYTHON=python cargo test --release -p rloom-hub -- --ignored --nocapture

HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE come from the test. Prints one JSON object.
"""

import json
import os
import sys
import warnings

import huggingface_hub as hub

warnings.simplefilter("error")
task = sys.argv[1]
cache = os.environ["HF_HUB_CACHE"]
result = {"version": hub.__version__}

if task == "download-files":  # as transformers and datasets do
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        path = hub.hf_hub_download("org/model", name)
    result["model"] = os.path.dirname(path)
    try:
        hub.hf_hub_download("org/model", "nosuch.json")
    except hub.errors.EntryNotFoundError:
        pass
    for name in ("README.md", "main/train-00000-of-00002.parquet", "main/train-00001-of-00002.parquet"):
        path = hub.hf_hub_download("org/data", name, repo_type="dataset")
    result["file"] = path
elif task == "download-snapshots":  # as vLLM does
    result["model"] = hub.snapshot_download("org/model", allow_patterns=["*.json", "*.safetensors"])
    result["data"] = hub.snapshot_download("org/data", repo_type="dataset")
elif task == "find":
    result["model"] = hub.snapshot_download("org/model")
    names = ("config.json", "tokenizer.json", "model.safetensors")
    result["files"] = [hub.hf_hub_download("org/model", name) for name in names]
    missing = hub.try_to_load_from_cache("org/model", "chat_template.jinja")
    result["known_missing"] = missing is hub.file_download._CACHED_NO_EXIST
    name = "main/train-00001-of-00002.parquet"
    result["data_file"] = hub.hf_hub_download("org/data", name, repo_type="dataset")
    info = hub.scan_cache_dir(cache)
    result["warnings"] = [str(warning) for warning in info.warnings]
    result["repos"] = {
        f"{repo.repo_type} {repo.repo_id}": sorted(f.file_name for r in repo.revisions for f in r.files)
        for repo in info.repos
    }
    result["refs"] = sorted(f"{repo.repo_id} {ref}" for repo in info.repos for ref in repo.refs)
else:
    sys.exit(f"unknown task {task}")
print(json.dumps(result))
