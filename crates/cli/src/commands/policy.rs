//! Opens the model of a command and resolves its sampling settings.

use std::path::{Path, PathBuf};

use rloom_config::Config;
use rloom_core::PolicyVersion;
use rloom_engine::{PublishedPolicy, RolloutEngine, RolloutSettings, SamplingSettings};
use rloom_hub::Hub;
use rloom_model::{Dtype, GenerationConfig};
use rloom_run::{Policy, assembly};

use crate::arguments::Sampling;
use crate::failure::Failure;
use crate::output::{CYAN, Output};

/// Use of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Its weights do not change: with bf16 they are never in memory as f32.
    Sampling,
    /// Its weights are trained.
    Training,
}

/// Opens a model folder, a hub model, or the best checkpoint of a run's folder. The dtype defaults to the run's, for
/// other models to f32.
pub(crate) fn open(
    source: &str,
    dtype: Option<Dtype>,
    opened: Use,
    hub: &Hub,
    output: Output,
) -> Result<Policy, Failure> {
    let read = |folder: &Path, dtype| match opened {
        Use::Sampling => Policy::open_frozen(folder, dtype),
        Use::Training => Policy::open(folder, dtype),
    };
    let folder = Path::new(source);
    if folder.join("checkpoints").is_dir() {
        let checkpoint = checkpoint(folder, None)?;
        output.info(&format!("using {}", output.paint(CYAN, &checkpoint.display().to_string())));
        let dtype = match dtype {
            Some(dtype) => dtype,
            None => Config::load(&[folder.join("config.toml")], &[] as &[&str])?.dtype,
        };
        return read(&checkpoint, dtype).map_err(Failure::from_run);
    }
    let folder = hub.model(source).map_err(|error| Failure::from_run(error.into()))?;
    read(&folder, dtype.unwrap_or_default()).map_err(Failure::from_run)
}

/// Like [`open`], for engines that read the weights themselves: the model may be of any architecture.
pub(crate) fn open_outside(source: &str, hub: &Hub, output: Output) -> Result<Policy, Failure> {
    let folder = Path::new(source);
    let folder = if folder.join("checkpoints").is_dir() {
        let checkpoint = checkpoint(folder, None)?;
        output.info(&format!("using {}", output.paint(CYAN, &checkpoint.display().to_string())));
        checkpoint
    } else {
        hub.model(source).map_err(|error| Failure::from_run(error.into()))?
    };
    Policy::open_outside(&folder, Dtype::default()).map_err(Failure::from_run)
}

/// Returns a checkpoint of a run: the named one, by default the best, or the latest if there is no best.
pub(crate) fn checkpoint(run: &Path, name: Option<&str>) -> Result<PathBuf, Failure> {
    let checkpoints = run.join("checkpoints");
    let names: &[&str] = match name {
        Some(name) => &[name],
        None => &["best", "latest"],
    };
    let found =
        names.iter().map(|name| checkpoints.join(name)).find(|path| path.join("config.json").is_file());
    let found = found.ok_or_else(|| {
        let wanted =
            name.map_or_else(|| "a checkpoint yet".to_owned(), |name| format!("a checkpoint `{name}`"));
        Failure::usage_text(format_args!("{} does not have {wanted}", run.display()))
            .hint(format!("`rloom inspect {}` lists its checkpoints", run.display()))
    })?;
    // Follows the link, because the checkpoint's own name contains stage and step.
    Ok(std::fs::read_link(&found).map_or(found, |target| checkpoints.join(target)))
}

/// The rollout engine of this process with the weights of a policy, computing on `threads` threads (0: one per core).
pub(crate) fn engine(
    policy: &Policy,
    threads: usize,
) -> Result<(impl RolloutEngine + use<>, PublishedPolicy), Failure> {
    let ctx = rloom_run::context(threads).map_err(Failure::failed)?;
    let model = policy.model().map_err(Failure::from_run)?;
    let tokenizer = Some((*policy.tokenizer).clone());
    let engine = assembly::rollout_engine(model.config(), &ctx, &RolloutSettings::default(), tokenizer)
        .map_err(Failure::failed)?;
    Ok((engine, assembly::publish(&ctx, &model, PolicyVersion(0))))
}

/// Sampling settings from the arguments; those not given default to the model's.
pub(crate) fn sampling(
    arguments: &Sampling,
    max_new_tokens: usize,
    model: &GenerationConfig,
    stop: &[String],
) -> Result<SamplingSettings, Failure> {
    let defaults = SamplingSettings::default();
    let recommended = if model.do_sample == Some(false) { Some(0.0) } else { model.temperature };
    let settings = SamplingSettings {
        temperature: arguments.temperature.or(recommended.map(|t| t as f32)).unwrap_or(defaults.temperature),
        top_k: arguments
            .top_k
            .or(model.top_k.map(|k| u32::try_from(k).unwrap_or(u32::MAX)))
            .unwrap_or(defaults.top_k),
        top_p: arguments.top_p.or(model.top_p.map(|p| p as f32)).unwrap_or(defaults.top_p),
        min_p: arguments.min_p.or(model.min_p.map(|p| p as f32)).unwrap_or(defaults.min_p),
        max_new_tokens,
        min_new_tokens: 0,
        stop: stop.to_vec(),
    };
    settings.validate().map_err(|error| {
        let from_file = error.key == "temperature" && arguments.temperature.is_none();
        let failure = Failure::usage(error);
        if !from_file {
            return failure;
        }
        failure.hint(
            "the model's generation_config.json recommends it; --temperature 0 decodes greedily, 1 samples from the \
             model's own distribution",
        )
    })?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sampling: Sampling,
    }

    /// Settings of a command line for a model that recommends a temperature.
    fn settings(line: &str, recommended: f64) -> Result<SamplingSettings, Failure> {
        let arguments = Line::try_parse_from(["rloom"].into_iter().chain(line.split_whitespace())).unwrap();
        let mut model = GenerationConfig::default();
        model.temperature = Some(recommended);
        sampling(&arguments.sampling, 256, &model, &[])
    }

    #[test]
    fn temperatures_near_zero_are_refused() {
        for recommended in [0.0, 0.6] {
            assert_eq!(settings("", recommended).unwrap().temperature, recommended as f32);
        }
        assert_eq!(settings("--temperature 0", 1e-6).unwrap().temperature, 0.0);
        for (line, recommended) in [("--temperature 1e-30", 1.0), ("--temperature=-1", 1.0), ("", 1e-6)] {
            let failure = settings(line, recommended).unwrap_err();
            let text = failure.to_string();
            assert!(text.contains("0 (greedy decoding) or at least 0.01"), "{text}");
            let said = failure.hints().iter().any(|hint| hint.contains("generation_config.json"));
            assert_eq!(said, line.is_empty(), "{line}");
        }
    }
}
