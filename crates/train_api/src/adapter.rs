//! Adapters as clients describe them.

use rloom_model::{LoraConfig, LoraTarget};
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::wire::LoraSettings;

/// Numerator of the scale `alpha / rank`: the same for every rank, as the SDK's users expect.
const ALPHA: f64 = 32.0;
const MAX_RANK: usize = 1024;

const ATTENTION: [LoraTarget; 4] =
    [LoraTarget::QProj, LoraTarget::KProj, LoraTarget::VProj, LoraTarget::OProj];
const MLP: [LoraTarget; 3] = [LoraTarget::GateProj, LoraTarget::UpProj, LoraTarget::DownProj];
const UNEMBED: [LoraTarget; 1] = [LoraTarget::LmHead];

/// A new adapter.
#[derive(Debug, Clone)]
pub(crate) struct NewAdapter {
    pub(crate) config: LoraConfig,
    /// Seed of its matrices `A`.
    pub(crate) seed: u64,
}

impl NewAdapter {
    /// The adapter that a client asks for.
    pub(crate) fn read(settings: &LoraSettings) -> Result<Self, Problem> {
        let LoraSettings { rank, seed, train_unembed, train_mlp, train_attn } = *settings;
        if !(1..=MAX_RANK).contains(&rank) {
            return Err(Problem::invalid(format!("`lora_config`: `rank` must be from 1 to {MAX_RANK}")));
        }
        let parts: [(bool, &[LoraTarget]); 3] =
            [(train_attn, &ATTENTION), (train_mlp, &MLP), (train_unembed, &UNEMBED)];
        let chosen = parts.into_iter().filter(|(trains, _)| *trains);
        let targets: Vec<LoraTarget> = chosen.flat_map(|(_, targets)| targets).copied().collect();
        if targets.is_empty() {
            return Err(Problem::invalid(
                "`lora_config`: one of `train_attn`, `train_mlp` and `train_unembed` must be true",
            ));
        }
        let config = LoraConfig::new(rank, ALPHA, false, &targets);
        Ok(Self { config, seed: seed.unwrap_or_default().cast_unsigned() })
    }
}

/// Entries of an answer about a model: whether it is an adapter, its rank and the layers that it adapts.
pub(crate) fn describe(lora: Option<&LoraConfig>) -> Value {
    let Some(lora) = lora else { return json!({"is_lora": false}) };
    let has = |targets: &[LoraTarget]| targets.iter().any(|target| lora.targets.contains(target));
    json!({
        "is_lora": true,
        "lora_rank": lora.rank,
        "train_attn": has(&ATTENTION),
        "train_mlp": has(&MLP),
        "train_unembed": has(&UNEMBED),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &Value) -> Result<NewAdapter, String> {
        let settings: LoraSettings =
            serde_json::from_value(settings.clone()).map_err(|error| error.to_string())?;
        NewAdapter::read(&settings).map_err(|problem| problem.message)
    }

    #[test]
    fn settings_select_rank_layers_and_seed() {
        let all = read(&json!({"rank": 8})).unwrap();
        assert_eq!((all.config.rank, all.config.scale(), all.seed), (8, 4.0, 0));
        assert_eq!(all.config.targets, [&LoraTarget::LAYER[..], &UNEMBED].concat());
        let mlp = read(&json!({"rank": 1, "seed": 7, "train_attn": false, "train_unembed": false})).unwrap();
        assert_eq!((&mlp.config.targets[..], mlp.seed), (&MLP[..], 7));
        let described = describe(Some(&mlp.config));
        assert_eq!(
            described,
            json!({"is_lora": true, "lora_rank": 1, "train_attn": false, "train_mlp": true, "train_unembed": false})
        );
        for (settings, expected) in [
            (json!({"rank": 0}), "`rank` must be from 1"),
            (json!({"rank": 100_000}), "`rank` must be from 1"),
            (json!({"train_attn": false, "train_mlp": false, "train_unembed": false}), "must be true"),
            (json!({"rank": 8, "dropout": 0.1}), "unknown field `dropout`"),
        ] {
            assert!(read(&settings).unwrap_err().contains(expected), "{settings}");
        }
    }
}
