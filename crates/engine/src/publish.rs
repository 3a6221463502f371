//! Published weights: the hand-over from a training engine to rollout engines.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::live::WeightSender;
use rloom_core::{PolicyId, PolicyVersion};
use serde::{Deserialize, Serialize};

/// One version of a policy's weights, ready to be loaded by a rollout engine.
#[derive(Debug, Clone)]
pub struct PublishedPolicy {
    /// The policy.
    pub policy: PolicyId,
    /// Version of its weights.
    pub version: PolicyVersion,
    /// Digest of the parameters: equal weights have equal digests.
    pub digest: u64,
    /// The weights, or the place to read them from.
    pub weights: PublishedWeights,
    /// Log-probabilities by which an engine that copies the weights checks its copy; `None` if there are none.
    pub probe: Option<Arc<Probe>>,
}

/// A fixed sequence and the trainer's log-probabilities for it, by the weights of one version.
///
/// A server may acknowledge an update that it has not made, or made by half. Its own log-probabilities for the same
/// tokens show that, as far as the difference exceeds the noise between engines.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// The sequence; at least two tokens.
    pub tokens: Vec<u32>,
    /// Log-probability of each token but the first, given those before it, at temperature 1.
    pub logprobs: Vec<f32>,
}

impl Probe {
    /// Mean absolute difference to an engine's log-probabilities for the same tokens; infinite if their number differs or
    /// one is not finite.
    pub fn distance(&self, logprobs: &[f32]) -> f32 {
        if self.logprobs.is_empty() || logprobs.len() != self.logprobs.len() {
            return f32::INFINITY;
        }
        let sum: f32 = self.logprobs.iter().zip(logprobs).map(|(a, b)| (a - b).abs()).sum();
        if sum.is_finite() { sum / logprobs.len() as f32 } else { f32::INFINITY }
    }
}

impl PublishedPolicy {
    /// Form of the weights.
    pub fn form(&self) -> Form {
        match &self.weights {
            PublishedWeights::Memory(_) => Form::Memory,
            PublishedWeights::Folder(_) => Form::Folder,
            PublishedWeights::Live(sender) => sender.form(),
            PublishedWeights::Adapter(_) => Form::Adapter,
        }
    }

    /// Name of exactly these weights. An engine that reports another label has not loaded them.
    pub fn label(&self) -> PolicyLabel {
        PolicyLabel { policy: self.policy, version: self.version, digest: self.digest }
    }
}

/// Name of one version of a policy's weights; displayed as `policy/version/digest`, such as `0/12/0000000089abcdef`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyLabel {
    /// The policy.
    pub policy: PolicyId,
    /// Version of its weights.
    pub version: PolicyVersion,
    /// Digest of the parameters.
    pub digest: u64,
}

impl fmt::Display for PolicyLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{:016x}", self.policy, self.version.0, self.digest)
    }
}

/// Text that is not a [`PolicyLabel`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a label of the form policy/version/digest")]
pub struct InvalidLabel(pub String);

impl FromStr for PolicyLabel {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        let mut parts = text.split('/');
        let mut next = || parts.next().unwrap_or_default();
        let (policy, version, digest) = (next(), next(), next());
        let label = policy.parse().ok().zip(version.parse().ok()).zip(u64::from_str_radix(digest, 16).ok());
        label
            .map(|((policy, version), digest)| Self {
                policy: PolicyId(policy),
                version: PolicyVersion(version),
                digest,
            })
            .filter(|label| label.to_string() == text)
            .ok_or_else(|| InvalidLabel(text.to_owned()))
    }
}

/// Weights of a publication, in one of the forms.
#[derive(Debug, Clone)]
pub enum PublishedWeights {
    /// Shared memory of this process.
    Memory(InProcessWeights),
    /// A Hugging Face model folder.
    Folder(Arc<WeightFolder>),
    /// The trainer's own memory, until the trainer changes its weights.
    Live(Arc<dyn WeightSender>),
    /// The folder of a LoRA adapter in PEFT's format. The receiver has its base already.
    Adapter(Arc<WeightFolder>),
}

/// A way of transferring weights from trainer to rollout engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// A handle within the process; nothing is copied.
    Memory,
    /// A Hugging Face model folder.
    Folder,
    /// A broadcast over NCCL, from the trainer's GPU to others.
    Nccl,
    /// Handles of CUDA memory, between processes on one GPU.
    Ipc,
    /// A LoRA adapter folder.
    Adapter,
}

impl Form {
    /// Name of the form in configuration files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Folder => "folder",
            Self::Nccl => "nccl",
            Self::Ipc => "ipc",
            Self::Adapter => "adapter",
        }
    }

    /// True if the weights stay in the trainer's memory, which is the trainer's to change.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Nccl | Self::Ipc)
    }

    /// The receiver's best form that the sender can produce; `None` if they have none in common.
    pub fn in_common(accepted: &[Self], produced: &[Self]) -> Option<Self> {
        accepted.iter().copied().find(|form| produced.contains(form))
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A shared handle on weights of this process. The engines that exchange it agree on the type behind it.
#[derive(Clone)]
pub struct InProcessWeights(Arc<dyn Any + Send + Sync>);

impl InProcessWeights {
    /// Wraps a shared handle.
    pub fn new<T: Any + Send + Sync>(weights: Arc<T>) -> Self {
        Self(weights)
    }

    /// Another handle on the same weights; `None` if they are of another type.
    pub fn downcast<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.0).downcast().ok()
    }

    /// Number of handles on the weights, this one included. With a single one the owner may write in place.
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl fmt::Debug for InProcessWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcessWeights").field("handles", &self.handles()).finish_non_exhaustive()
    }
}

/// A folder with weights: a Hugging Face model, or a PEFT adapter.
#[derive(Debug, PartialEq, Eq)]
pub struct WeightFolder {
    path: PathBuf,
    is_temporary: bool,
}

impl WeightFolder {
    /// A folder that stays, such as a checkpoint.
    pub fn kept(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_temporary: false }
    }

    /// A folder that is removed with the last handle on it.
    pub fn temporary(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_temporary: true }
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WeightFolder {
    fn drop(&mut self) {
        if self.is_temporary {
            // A folder that cannot be removed costs space and nothing else; there is no caller to report to.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(weights: PublishedWeights) -> PublishedPolicy {
        let version = PolicyVersion(12);
        PublishedPolicy { policy: PolicyId(1), version, digest: 0x89ab_cdef, weights, probe: None }
    }

    #[test]
    fn a_label_names_policy_version_and_digest() {
        let memory = published(PublishedWeights::Memory(InProcessWeights::new(Arc::new(7u8))));
        assert_eq!(
            (memory.form(), memory.label().to_string()),
            (Form::Memory, "1/12/0000000089abcdef".into())
        );
        assert_eq!(serde_json::to_value(Form::Folder).unwrap(), Form::Folder.name());
        assert_eq!(memory.label().to_string().parse(), Ok(memory.label()));
        for text in
            ["", "default", "1/12", "1/12/89abcdef", "1/12/0000000089abcdef/", "+1/12/0000000089abcdef"]
        {
            assert_eq!(text.parse::<PolicyLabel>(), Err(InvalidLabel(text.to_owned())));
        }
    }

    #[test]
    fn a_probe_measures_the_mean_difference() {
        let probe = Probe { tokens: vec![1, 2, 3], logprobs: vec![-1.0, -2.0] };
        assert_eq!(probe.distance(&[-1.0, -2.0]), 0.0);
        assert_eq!(probe.distance(&[-2.0, -1.0]), 1.0);
        for other in [&[-1.0][..], &[-1.0, f32::NAN], &[-1.0, f32::NEG_INFINITY], &[]] {
            assert_eq!(probe.distance(other), f32::INFINITY);
        }
    }

    #[test]
    fn weights_in_memory_are_shared_and_typed() {
        let owner = Arc::new(String::from("weights"));
        let held = InProcessWeights::new(Arc::clone(&owner));
        assert!(held.downcast::<u8>().is_none());
        assert!(Arc::ptr_eq(&held.downcast::<String>().unwrap(), &owner));
        assert_eq!(held.handles(), 2);
    }

    #[test]
    fn a_temporary_folder_goes_with_its_last_handle() {
        let parent = tempfile::tempdir().unwrap();
        let [temporary, kept] = ["temporary", "kept"].map(|name| parent.path().join(name));
        for path in [&temporary, &kept] {
            std::fs::create_dir(path).unwrap();
        }
        let handle = published(PublishedWeights::Folder(Arc::new(WeightFolder::temporary(&temporary))));
        let other = handle.clone();
        drop((handle, WeightFolder::kept(&kept)));
        assert!(temporary.exists() && kept.exists());
        drop(other);
        assert!(!temporary.exists() && kept.exists());
    }

    #[test]
    fn the_receiver_chooses_the_form() {
        let accepted = [Form::Nccl, Form::Folder];
        assert_eq!(Form::in_common(&accepted, &[Form::Memory, Form::Folder]), Some(Form::Folder));
        assert_eq!(Form::in_common(&accepted, &[Form::Memory]), None);
    }
}
