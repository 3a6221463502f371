//! Saving and restoring the engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_engine::{Access, SaveDtype, SavedFile, TrainError, TrainWork};
use rloom_model::{AdapterError, Gradients, Model, Optimizer, OutputHeads};

use super::EmbeddedTrainEngine;
use crate::train::views::{checkpoint, storage};

/// Path of a policy's value head in the engine's folder.
const VALUE_HEAD: &str = "trainer/value_head.safetensors";
const OPTIMIZER: &str = "trainer/optimizer.safetensors";
/// Folder of a reference that has moved.
const REFERENCE: &str = "trainer/reference";
/// Weights of a model folder, and the bits that they lose in bf16.
const WEIGHTS: [&str; 2] = ["model.safetensors", "model.low_bits"];
/// Files of an adapter, whose base is in another folder.
const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
/// Files of a model folder besides the weights; a critic has no generation settings.
const MODEL: [&str; 2] = ["config.json", "generation_config.json"];

impl EmbeddedTrainEngine {
    /// Writes the model, the optimizer's state and a reference that has moved.
    pub(super) fn save_to(&self, directory: &Path) -> Result<Vec<SavedFile>, TrainError> {
        let is_policy = self.policy.config().output_heads.language();
        let has_value_head = self.policy.config().output_heads == OutputHeads::LanguageAndValue;
        let model = MODEL.into_iter().filter(|&name| is_policy || name != "generation_config.json");
        let is_bf16 = self.save_dtype == SaveDtype::Bf16 && self.policy.lora().is_none();
        let weights: &[&str] = match self.policy.lora() {
            Some(_) => &ADAPTER,
            None if is_bf16 => &WEIGHTS,
            None => &WEIGHTS[..1],
        };
        let model: Vec<&str> = model.chain(weights.iter().copied()).collect();
        let trainer_files = [Some(OPTIMIZER), has_value_head.then_some(VALUE_HEAD)].into_iter().flatten();
        let reference = self.reference.as_ref().filter(|_| self.has_reference_moved);
        let of_reference: Vec<String> = match reference {
            Some(_) => MODEL.iter().chain(&WEIGHTS[..1]).map(|name| format!("{REFERENCE}/{name}")).collect(),
            None => Vec::new(),
        };
        let names = model.iter().copied().chain(trainer_files);
        let names: Vec<&str> = names.chain(of_reference.iter().map(String::as_str)).collect();
        let mut progress = self.observer.begin(TrainWork::Write, names.len());
        let saved = if is_bf16 {
            self.policy.save_bf16(directory, &self.generation)
        } else {
            self.policy.save(directory, &self.generation)
        };
        saved.map_err(checkpoint)?;
        progress.advance_by(model.len());
        let trainer = directory.join("trainer");
        fs::create_dir_all(&trainer).map_err(|source| storage(Access::Write, &trainer, source))?;
        if has_value_head {
            self.policy.save_value_head(&directory.join(VALUE_HEAD)).map_err(checkpoint)?;
            progress.advance();
        }
        self.optimizer.save(&directory.join(OPTIMIZER)).map_err(checkpoint)?;
        progress.advance();
        if let Some(reference) = reference {
            let folder = directory.join(REFERENCE);
            fs::create_dir_all(&folder).map_err(|source| storage(Access::Write, &folder, source))?;
            reference.save(&folder, &self.generation).map_err(checkpoint)?;
            progress.advance_by(of_reference.len());
        }
        names
            .into_iter()
            .map(|name| {
                let path = directory.join(name);
                let bytes = fs::metadata(&path).map_err(|source| storage(Access::Read, &path, source))?.len();
                Ok(SavedFile { path: PathBuf::from(name), bytes })
            })
            .collect()
    }

    /// Reads what [`save_to`](Self::save_to) has written.
    pub(super) fn restore_from(&mut self, directory: &Path) -> Result<(), TrainError> {
        let policy = match self.policy.config().output_heads {
            OutputHeads::LanguageAndValue if self.policy.lora().is_some() => {
                let mut policy = self.stored_adapter(directory)?.with_value_head();
                policy.load_value_head(&directory.join(VALUE_HEAD)).map_err(checkpoint)?;
                policy
            }
            _ if self.policy.lora().is_some() => self.stored_adapter(directory)?,
            OutputHeads::Language => Model::load(directory).map_err(checkpoint)?,
            OutputHeads::Value => Model::load_critic(directory).map_err(checkpoint)?,
            OutputHeads::Reward => Model::load_reward(directory).map_err(checkpoint)?,
            OutputHeads::ProcessReward => Model::load_process_reward(directory).map_err(checkpoint)?,
            OutputHeads::LanguageAndValue => {
                let mut policy = Model::load(directory).map_err(checkpoint)?.with_value_head();
                policy.load_value_head(&directory.join(VALUE_HEAD)).map_err(checkpoint)?;
                policy
            }
        };
        self.restore_reference(directory)?;
        self.policy = Arc::new(policy.with_dtype(self.policy.config().dtype));
        self.gradients = Gradients::zeros(&self.policy);
        let settings = self.optimizer.settings().clone();
        self.optimizer =
            Optimizer::load(&directory.join(OPTIMIZER), &self.policy, settings).map_err(checkpoint)?;
        self.digest = None;
        self.accumulated.clear();
        Ok(())
    }

    /// The adapter in a folder over the base in memory.
    fn stored_adapter(&self, directory: &Path) -> Result<Model, TrainError> {
        let is_reward = self.policy.config().output_heads.rewards();
        let stored = if is_reward {
            self.policy.with_stored_reward_adapter(directory)
        } else {
            self.policy.with_stored_adapter(directory)
        };
        let stored = stored.map_err(checkpoint)?;
        if stored.lora() != self.policy.lora() {
            return Err(checkpoint(AdapterError::OtherShape { path: directory.to_owned() }));
        }
        Ok(stored)
    }

    /// Restores a reference that had moved. One that has moved since cannot go back to where it was at first.
    fn restore_reference(&mut self, directory: &Path) -> Result<(), TrainError> {
        let Some(reference) = &self.reference else { return Ok(()) };
        let folder = directory.join(REFERENCE);
        if folder.is_dir() {
            let stored = Model::load(&folder).map_err(checkpoint)?.with_dtype(reference.config().dtype);
            self.reference = Some(Arc::new(stored));
            self.has_reference_moved = true;
        } else if self.has_reference_moved {
            return Err(TrainError::NoReference);
        }
        Ok(())
    }
}
