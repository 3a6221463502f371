//! `rloom export RUN model`: the weights of a run in a folder for other programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_model::{Dtype, GenerationConfig, Model, OutputHeads};
use rloom_run::Policy;
use rloom_text::Tokenizer;
use serde_json::json;

use super::policy::checkpoint;
use super::train::find_run;
use crate::arguments::{Export, ExportedModel};
use crate::failure::Failure;
use crate::output::{CYAN, Output};

pub(super) fn run(arguments: &Export, output: Output) -> Result<(), Failure> {
    let ExportedModel { out, checkpoint, merge, dtype } = &arguments.model;
    let Some(out) = out else {
        return Err(Failure::usage_text("a model is exported to a folder: pass --out FOLDER"));
    };
    if fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::usage_text(format_args!("{} is not empty", out.display())));
    }
    let source = source(&arguments.run, checkpoint.as_deref())?;
    output.info(&format!("reading {}", output.paint(CYAN, &source.display().to_string())));
    let opened = Opened::new(&source)?;
    let model = &opened.model;
    let is_adapter = model.lora().is_some();
    let is_merged = Model::is_merged_when_read(&source).map_err(Failure::failed)?;
    if is_merged && !merge {
        return Err(Failure::usage_text(format_args!(
            "{} is a DoRA adapter in PEFT's format already; pass --merge to add it to its base",
            source.display()
        )));
    }
    if *merge && !is_adapter && !is_merged {
        let source = source.display();
        return Err(Failure::usage_text(format_args!("{source} is a model without an adapter to merge")));
    }
    if is_adapter && !merge && dtype.is_some() {
        return Err(Failure::usage_text("an adapter is written in f32; --dtype needs --merge"));
    }
    let merged = if *merge {
        output.info("adding the adapter to its base");
        Some(model.merged())
    } else {
        None
    };
    let dtype = dtype.map(Dtype::from).unwrap_or_default();
    let written = merged.as_ref().unwrap_or(model);
    output.info(&format!("writing {}", output.paint(CYAN, &out.display().to_string())));
    let bytes = opened.write(written, out, dtype)?;
    if let Some(base) = written.lora().and_then(|_| written.folder()) {
        output.info(&format!("its base stays in {}", base.display()));
    }
    output.json(&json!({
        "folder": out,
        "adapter": written.lora().is_some(),
        "dtype": dtype.name(),
        "bytes": bytes,
    }))
}

/// The folder of a model: the given one, or a checkpoint of a run.
fn source(run: &Path, name: Option<&str>) -> Result<PathBuf, Failure> {
    let is_model = ["config.json", "adapter_config.json"].iter().any(|file| run.join(file).is_file());
    if is_model && name.is_none() {
        return Ok(run.to_owned());
    }
    checkpoint(&find_run(run)?, name)
}

/// A policy or a reward model with the other files of its folder.
struct Opened {
    model: Arc<Model>,
    tokenizer: Tokenizer,
    generation: GenerationConfig,
}

impl Opened {
    fn new(folder: &Path) -> Result<Self, Failure> {
        let model = match Model::heads_of(folder) {
            OutputHeads::Reward => Model::load_reward(folder),
            OutputHeads::ProcessReward => Model::load_process_reward(folder),
            _ => {
                let policy = Policy::open(folder, Dtype::F32).map_err(Failure::from_run)?;
                let model = policy.model().map_err(Failure::from_run)?;
                return Ok(Self {
                    model,
                    tokenizer: (*policy.tokenizer).clone(),
                    generation: policy.generation,
                });
            }
        };
        Ok(Self {
            model: Arc::new(model.map_err(Failure::failed)?),
            tokenizer: Tokenizer::load(folder).map_err(Failure::failed)?,
            generation: GenerationConfig::default(),
        })
    }

    /// Writes the folder, which appears under its name when it is complete. Returns its size in bytes.
    fn write(&self, model: &Model, out: &Path, dtype: Dtype) -> Result<u64, Failure> {
        let failed = |path: &Path, error: std::io::Error| {
            Failure::failed_text(format_args!("could not write {}: {error}", path.display()))
        };
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        let partial = out.with_file_name(format!(".partial-{name}"));
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(|error| failed(&partial, error))?;
        }
        fs::create_dir_all(&partial).map_err(|error| failed(&partial, error))?;
        let fill = || -> Result<u64, Failure> {
            model.export(&partial, &self.generation, dtype).map_err(Failure::failed)?;
            self.tokenizer.save(&partial).map_err(Failure::failed)?;
            let size =
                |entry: std::io::Result<fs::DirEntry>| entry.and_then(|entry| Ok(entry.metadata()?.len()));
            let files = fs::read_dir(&partial).map_err(|error| failed(&partial, error))?;
            let bytes =
                files.map(size).sum::<std::io::Result<u64>>().map_err(|error| failed(&partial, error))?;
            if out.exists() {
                fs::remove_dir(out).map_err(|error| failed(out, error))?;
            }
            fs::rename(&partial, out).map_err(|error| failed(out, error))?;
            Ok(bytes)
        };
        let written = fill();
        if written.is_err() {
            // The first error is the one to report, and a full disk needs the space.
            let _ = fs::remove_dir_all(&partial);
        }
        written
    }
}
