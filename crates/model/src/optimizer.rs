//! AdamW over a model's weights.

use std::path::{Path, PathBuf};

use rloom_ops::{self as ops, Ctx};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{TensorFile, write_tensors};
use crate::moments::Moments;
use crate::tensors::TensorSpec;
use crate::{CheckpointError, Gradients, Model, Schedule};

/// Format of the optimizer's moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MomentFormat {
    /// 32 bits: 8 bytes for each weight.
    #[default]
    F32,
    /// 8 bits, with a common scale for each 256 elements: 2 bytes for each weight. Updates are those of rounded moments. Tensors of
    /// less than 4,096 elements keep 32 bits.
    Int8,
}

/// Settings of the optimiser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSettings {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Decay rates of the first and of the second moment.
    pub betas: [f64; 2],
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of matrices, including the embedding table; norms and biases do not decay.
    pub weight_decay: f64,
    /// Maximum global gradient norm; larger gradients are scaled down. 0 disables clipping.
    pub max_grad_norm: f64,
    /// Optimizer steps until the peak learning rate.
    pub warmup_steps: u64,
    /// Schedule after the warm-up.
    pub schedule: Schedule,
    /// Final learning rate of decaying schedules, as a fraction of the peak.
    pub min_lr_ratio: f64,
    /// Format of both moments in memory and in checkpoints.
    pub moments: MomentFormat,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self {
            learning_rate: 1e-6,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            warmup_steps: 0,
            schedule: Schedule::Constant,
            min_lr_ratio: 0.0,
            moments: MomentFormat::F32,
        }
    }
}

impl OptimizerSettings {
    /// Checks the ranges; the error names the key and its range.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        let checks = [
            ("learning_rate", self.learning_rate, self.learning_rate >= 0.0, "0 or more"),
            (
                "betas",
                self.betas[0],
                (0.0..1.0).contains(&self.betas[0]),
                "two numbers from 0 to less than 1",
            ),
            (
                "betas",
                self.betas[1],
                (0.0..1.0).contains(&self.betas[1]),
                "two numbers from 0 to less than 1",
            ),
            ("eps", self.eps, self.eps > 0.0, "greater than 0"),
            ("weight_decay", self.weight_decay, self.weight_decay >= 0.0, "0 or more"),
            ("max_grad_norm", self.max_grad_norm, self.max_grad_norm >= 0.0, "0 (off) or more"),
            ("min_lr_ratio", self.min_lr_ratio, (0.0..=1.0).contains(&self.min_lr_ratio), "from 0 to 1"),
        ];
        match checks.into_iter().find(|(_, value, fine, _)| !(*fine && value.is_finite())) {
            Some((key, value, _, range)) => Err(OptimizerError::Setting { key, value, range }),
            None => Ok(()),
        }
    }
}

/// Statistics of one optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepStats {
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// True if the gradient was scaled down.
    pub clipped: bool,
    /// Learning rate of the step.
    pub learning_rate: f64,
}

/// A failed optimizer step, or a state that cannot be read or written.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum OptimizerError {
    /// The gradient contains an infinity or a NaN; weights and moments are unchanged.
    #[error("optimiser step {step}: the gradient of {tensor} is not finite; the weights are unchanged")]
    #[diagnostic(help("lower the learning rate"))]
    NotFinite {
        /// Index of the failed step, starting at 1.
        step: u64,
        /// The first such tensor.
        tensor: String,
    },
    /// A setting is out of range.
    #[error("{key} = {value}: must be {range}")]
    Setting {
        /// The key.
        key: &'static str,
        /// Its value.
        value: f64,
        /// Allowed range.
        range: &'static str,
    },
    /// Error of the state's file.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// AdamW with its moments (Loshchilov & Hutter, 2019, arXiv:1711.05101), computed as by `torch.optim.AdamW`.
#[derive(Debug, Clone)]
pub struct Optimizer {
    settings: OptimizerSettings,
    /// Number of steps taken.
    step: u64,
    moments: Moments,
    specs: std::sync::Arc<[TensorSpec]>,
    /// True for each buffer with weight decay.
    decays: Vec<bool>,
}

impl Optimizer {
    /// An optimiser without steps.
    pub fn new(model: &Model, settings: OptimizerSettings) -> Self {
        let specs = std::sync::Arc::clone(model.trained_specs());
        let moments = Moments::zeros(model, settings.moments);
        let mut decays = vec![false; moments.len()];
        for spec in specs.iter() {
            decays[spec.buffer] = spec.decays;
        }
        Self { settings, step: 0, moments, specs, decays }
    }

    /// Settings of the optimiser.
    pub fn settings(&self) -> &OptimizerSettings {
        &self.settings
    }

    /// Replaces the settings but for the format of the moments; moments and step count stay.
    pub fn set_settings(&mut self, settings: OptimizerSettings) {
        let moments = self.settings.moments;
        self.settings = settings;
        self.settings.moments = moments;
    }

    /// Number of steps taken.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Updates the weights by one step with `gradients`, clipped to the global norm. A non-finite gradient is an error
    /// and changes nothing.
    ///
    /// # Panics
    ///
    /// If `model` or `gradients` have another shape than the optimiser's model.
    pub fn step(
        &mut self,
        ctx: &Ctx,
        model: &mut Model,
        gradients: &Gradients,
        learning_rate: f64,
    ) -> Result<StepStats, OptimizerError> {
        let grad_norm = gradients.norm(ctx);
        if !grad_norm.is_finite() {
            let tensor = gradients.first_not_finite().unwrap_or("a tensor").to_owned();
            return Err(OptimizerError::NotFinite { step: self.step + 1, tensor });
        }
        self.step += 1;
        let s = &self.settings;
        // As `torch.nn.utils.clip_grad_norm_`.
        let scale = if s.max_grad_norm > 0.0 { (s.max_grad_norm / (grad_norm + 1e-6)).min(1.0) } else { 1.0 };
        let weights = model.trained_mut();
        let gradients = gradients.bufs().zip(&self.decays);
        for ((w, moments), (g, &decays)) in weights.into_iter().zip(self.moments.bufs_mut()).zip(gradients) {
            let adamw = ops::AdamW {
                lr: learning_rate,
                beta1: s.betas[0],
                beta2: s.betas[1],
                eps: s.eps,
                weight_decay: if decays { s.weight_decay } else { 0.0 },
                step: self.step,
                grad_scale: scale as f32,
            };
            moments.step(ctx, w, &g, &adamw);
        }
        Ok(StepStats { grad_norm, clipped: scale < 1.0, learning_rate })
    }

    /// Writes moments and step count as a `safetensors` file: `exp_avg.NAME` and `exp_avg_sq.NAME`, and the codes and scales
    /// of moments in 8 bits.
    pub fn save(&self, path: &Path) -> Result<(), OptimizerError> {
        write_tensors(path, &[("step", self.step.to_string())], self.moments.tensors(&self.specs))?;
        Ok(())
    }

    /// Reads a file of [`save`](Self::save) for a model of the same shape.
    pub fn load(path: &Path, model: &Model, settings: OptimizerSettings) -> Result<Self, OptimizerError> {
        let file = TensorFile::open(path)?;
        let mut optimizer = Self::new(model, settings);
        let step = file.metadata_entry("step").and_then(|step| step.parse().ok());
        optimizer.step =
            step.ok_or_else(|| CheckpointError::NoStepCount { path: PathBuf::from(file.path()) })?;
        optimizer.moments.read(&file, &optimizer.specs)?;
        Ok(optimizer)
    }
}
