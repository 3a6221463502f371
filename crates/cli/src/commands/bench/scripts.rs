//! The programs of the comparison in `bench/`, which this program contains.

use std::fs;
use std::io;
use std::path::Path;

macro_rules! scripts {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../../bench/", $name)))),*]
    };
}

/// Path below the folder, and contents.
const SCRIPTS: &[(&str, &str)] = scripts![
    "compare.py",
    "environments.py",
    "picture.py",
    "processes.py",
    "programs.py",
    "screen.py",
    "table.py",
    "peers/gguf_folder.py",
    "peers/llama_decode.py",
    "peers/model_folder.py",
    "peers/qwen.py",
    "peers/rloom_grpo.py",
    "peers/rloom_rows.py",
    "peers/rows.py",
    "peers/torch_gemm.py",
    "peers/torch_rank.py",
    "peers/torch_train.py",
    "peers/transformers_decode.py",
    "peers/trl_grpo.py",
    "peers/trl_rows.py",
    "peers/vllm_decode.py",
    "peers/workloads.py",
];

/// Writes all programs below a folder, each at once.
pub(super) fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder.join("peers"))?;
    for (name, text) in SCRIPTS {
        let path = folder.join(name);
        if fs::read_to_string(&path).is_ok_and(|present| present == *text) {
            continue;
        }
        // Another comparison may be reading the file.
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        fs::write(&partial, text)?;
        fs::rename(&partial, &path)?;
    }
    Ok(())
}
