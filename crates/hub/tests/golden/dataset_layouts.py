"""Writes dataset_layouts.json: the files that Python's `datasets` reads for each subset and split of a repository.

    pip install datasets==5.2.0
    python dataset_layouts.py > dataset_layouts.json
"""

import json
import os
import tempfile

from datasets import DownloadConfig
from datasets.load import LocalDatasetModuleFactory

GSM8K = """---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/train-*
  - split: test
    path: socratic/test-*
---
# GSM8K
"""

LISTS = """---
configs:
- config_name: "all"
  default: true
  data_files: "**/*.jsonl"
- config_name: some
  data_files:
  - b/1.jsonl
  - a/*.jsonl
- config_name: "2024"
  data_files:
  - split: dev
    path: ["b/[12].jsonl", a/1.jsonl]
---
"""

FOLDERS = """---
configs:
- config_name: en
  data_dir: en
- config_name: de
  data_dir: ./de
---
"""

CASES = {
    "gsm8k": (
        GSM8K,
        [f"{c}/{s}-00000-of-00001.parquet" for c in ("main", "socratic") for s in ("train", "test")],
    ),
    "lists": (LISTS, ["a/1.jsonl", "a/2.jsonl", "b/1.jsonl", "b/2.jsonl", "b/3.jsonl"]),
    "folders": (FOLDERS, ["en/train.jsonl", "en/test.jsonl", "de/data/train-00000-of-00001.jsonl"]),
    "sharded": (
        None,
        [f"data/train-0000{i}-of-00003.parquet" for i in range(3)]
        + ["data/test-00000-of-00001-0123abcd.parquet", "data/extra-00000-of-00001.parquet", "notes.txt"],
    ),
    "files": (None, ["train.jsonl", "test.jsonl", "validation.jsonl", "dataset_infos.json"]),
    "one_file": (None, ["questions.jsonl"]),
    "numbered": (None, ["x_train_1.jsonl", "x_train_0.jsonl", "dev-0.jsonl", "eval.jsonl", "retrain.jsonl"]),
    "folders_by_split": (None, ["training/b.jsonl", "training/a/c.jsonl", "my-test/a.jsonl", "readme.txt"]),
    "subfolders": (None, ["main/train-00000-of-00001.parquet", "other/train.parquet", "other/test.parquet"]),
    "mixed": (None, ["train.jsonl", "train.1.parquet", "train.2.parquet", "test.parquet"]),
    "hidden": (None, [".cache/train.jsonl", "__old/train.jsonl", "train.jsonl", "a/.b.jsonl"]),
    "csv": (None, ["train.csv", "test.csv"]),
}


def layout(card, files):
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        if card is not None:
            with open(os.path.join(folder, "README.md"), "w") as f:
                f.write(card)
        for path in files:
            os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
            with open(os.path.join(folder, path), "w") as f:
                f.write("{}")
        module = LocalDatasetModuleFactory(folder).get_module()
        parameters = module.builder_configs_parameters
        subsets = {}
        for config in parameters.builder_configs:
            config._resolve_data_files(folder, DownloadConfig())
            data_files = config.data_files
            subsets[config.name] = {
                str(split): [os.path.relpath(path, folder) for path in paths] for split, paths in data_files.items()
            }
        return {"card": card, "files": sorted(files), "default": parameters.default_config_name, "subsets": subsets}


print(json.dumps({name: layout(*case) for name, case in CASES.items()}, indent=1))
