use serde::{Deserialize, Serialize};

use crate::RolloutError;

/// How tokens are chosen.
///
/// The order is that of `transformers`' generation: temperature, then top-k, then top-p, then min-p, each on what
/// the ones before it left. Whatever is chosen here, the log-probability reported for a token is that of the *full*
/// softmax at the temperature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingSettings {
    /// Divides the logits. 0 is greedy decoding: the most probable token, the lowest id among equals; its
    /// log-probabilities are reported at temperature 1.
    pub temperature: f32,
    /// Keeps the `top_k` most probable tokens (and all that are equal to the last of them); 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of most probable tokens whose probabilities sum to at least `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least `min_p` times as probable as the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Most tokens of a completion, the stop token included.
    pub max_new_tokens: usize,
    /// Stop tokens cannot be chosen before the completion has this many tokens; stop strings are not affected.
    pub min_new_tokens: usize,
    /// Generation ends when the completion's text contains one of these. The completion keeps every token up to and
    /// including the one that completed the match.
    pub stop: Vec<String>,
}

impl Default for SamplingSettings {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            max_new_tokens: 256,
            min_new_tokens: 0,
            stop: Vec::new(),
        }
    }
}

impl SamplingSettings {
    /// Greedy decoding of at most `max_new_tokens` tokens.
    pub fn greedy(max_new_tokens: usize) -> Self {
        Self { temperature: 0.0, max_new_tokens, ..Self::default() }
    }

    /// Whether the most probable token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// The temperature that log-probabilities are reported at: greedy decoding reports 1.
    pub fn reported_temperature(&self) -> f32 {
        if self.is_greedy() { 1.0 } else { self.temperature }
    }

    /// The first setting that makes the sampler another distribution than the full softmax at the temperature.
    /// Training on such samples is off-policy in a way that the reported log-probabilities do not show.
    pub fn restriction(&self) -> Option<&'static str> {
        [
            (self.is_greedy(), "temperature"),
            (self.top_k != 0, "top_k"),
            (self.top_p < 1.0, "top_p"),
            (self.min_p > 0.0, "min_p"),
            (self.min_new_tokens > 0, "min_new_tokens"),
        ]
        .into_iter()
        .find_map(|(restricts, name)| restricts.then_some(name))
    }

    /// Checks each value's range.
    pub fn validate(&self) -> Result<(), RolloutError> {
        let refuse = |key, value: String, expected| Err(RolloutError::Setting { key, value, expected });
        let t = self.temperature;
        // The kernels multiply by 1/t, which must be finite.
        if !(t == 0.0 || (t.is_finite() && t > 0.0 && inverse_temperature(t).is_finite())) {
            return refuse("temperature", t.to_string(), "0 (greedy) or a positive number");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", self.top_p.to_string(), "above 0 and at most 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse("min_p", self.min_p.to_string(), "from 0 to 1");
        }
        if self.max_new_tokens == 0 {
            return refuse("max_new_tokens", "0".to_owned(), "at least 1");
        }
        if self.min_new_tokens > self.max_new_tokens {
            let value = self.min_new_tokens.to_string();
            return refuse("min_new_tokens", value, "at most max_new_tokens");
        }
        if self.stop.iter().any(String::is_empty) {
            return refuse("stop", "an empty string".to_owned(), "strings of at least one character");
        }
        Ok(())
    }
}

/// What logits are multiplied by at a (positive) temperature. Sampler and trainer must take it from one place: the
/// quotient's rounding is part of the bits of every log-probability.
pub fn inverse_temperature(temperature: f32) -> f32 {
    1.0 / temperature
}

/// How a lane computes several tokens of one sequence in a step. Whatever it drafts, tokens and log-probabilities are the
/// same to the byte; only the time that they take differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speculation {
    /// One token of each sequence in a step.
    #[default]
    Off,
    /// Where the last tokens of a sequence occurred in it before, what followed them then is drafted, computed with them
    /// and kept as far as it is what the sampler chooses. Each lane measures how often drafts come true and what their
    /// rows cost, and drafts as much as pays: nothing, where steps are bound by arithmetic.
    Ngram,
}

/// How the embedded engine uses the machine. None of these changes a token or a log-probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutSettings {
    /// Threads to compute with. 0 takes all of the compute context that the engine is given; any other number makes
    /// threads of the engine's own, so that it works beside training.
    pub threads: usize,
    /// Lanes: each has its own thread, key-value blocks and batch. 0 chooses: as many as threads for small models, one
    /// lane that uses all threads inside each step for large ones.
    pub lanes: usize,
    /// Memory for keys and values over all lanes (MiB). 0 chooses: enough for `max_batch` sequences of full context in
    /// every lane, but at most 2 GiB (and never less than one such sequence per lane).
    pub kv_memory_mib: usize,
    /// Most sequences that run together in a lane.
    pub max_batch: usize,
    /// Most prompt tokens that one step of a lane computes next to its decoding sequences.
    pub prefill_chunk: usize,
    /// Whether tokens are drafted and verified several at a time.
    pub speculation: Speculation,
    /// Longest wait for one completion, from request to result, and for one answer of the environment (seconds).
    pub deadline_seconds: f64,
    /// How often each lane may be started again after its thread panicked or its model failed; its requests then answer
    /// with an error that may be retried. With 0 the first failure ends the engine with its message.
    pub restarts: u32,
}

impl Default for RolloutSettings {
    fn default() -> Self {
        Self {
            threads: 0,
            lanes: 0,
            kv_memory_mib: 0,
            max_batch: 64,
            prefill_chunk: 256,
            speculation: Speculation::Off,
            deadline_seconds: 3600.0,
            restarts: 0,
        }
    }
}

impl RolloutSettings {
    /// Checks each value's range.
    pub fn validate(&self) -> Result<(), RolloutError> {
        let refuse = |key, value: String, expected| Err(RolloutError::Setting { key, value, expected });
        if self.threads > 1024 {
            return refuse("threads", self.threads.to_string(), "at most 1024 (0 takes all there are)");
        }
        if self.lanes > 1024 {
            return refuse("lanes", self.lanes.to_string(), "at most 1024 (0 chooses)");
        }
        if self.max_batch == 0 {
            return refuse("max_batch", "0".to_owned(), "at least 1");
        }
        if self.prefill_chunk == 0 {
            return refuse("prefill_chunk", "0".to_owned(), "at least 1");
        }
        // A year: keeps the value inside what clocks can add.
        if !(self.deadline_seconds > 0.0 && self.deadline_seconds <= 31_536_000.0) {
            let value = self.deadline_seconds.to_string();
            return refuse("deadline_seconds", value, "above 0 and at most 31536000");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restrictions_are_named() {
        let full = SamplingSettings::default();
        assert_eq!(full.restriction(), None);
        assert_eq!(SamplingSettings::greedy(3).restriction(), Some("temperature"));
        assert_eq!(SamplingSettings { top_p: 0.9, ..full.clone() }.restriction(), Some("top_p"));
        assert_eq!(SamplingSettings { min_new_tokens: 2, ..full }.restriction(), Some("min_new_tokens"));
    }

    #[test]
    fn bad_values_are_refused_by_name() {
        let full = SamplingSettings::default();
        let cases = [
            (SamplingSettings { temperature: -1.0, ..full.clone() }, "temperature"),
            (SamplingSettings { temperature: f32::NAN, ..full.clone() }, "temperature"),
            (SamplingSettings { temperature: 1e-40, ..full.clone() }, "temperature"),
            (SamplingSettings { top_p: 0.0, ..full.clone() }, "top_p"),
            (SamplingSettings { min_p: 1.5, ..full.clone() }, "min_p"),
            (SamplingSettings { max_new_tokens: 0, ..full.clone() }, "max_new_tokens"),
            (SamplingSettings { min_new_tokens: 300, ..full.clone() }, "min_new_tokens"),
            (SamplingSettings { stop: vec![String::new()], ..full }, "stop"),
        ];
        for (settings, name) in cases {
            let message = settings.validate().unwrap_err().to_string();
            assert!(message.starts_with(name), "{message}");
        }
        let engine = RolloutSettings { deadline_seconds: 0.0, ..RolloutSettings::default() };
        assert!(engine.validate().is_err());
        assert!(RolloutSettings::default().validate().is_ok());
    }

    #[test]
    fn unknown_keys_are_refused() {
        let json = r#"{"temperature": 0.7, "topk": 3}"#;
        assert!(serde_json::from_str::<SamplingSettings>(json).is_err());
        let parsed: SamplingSettings = serde_json::from_str(r#"{"top_k": 3}"#).unwrap();
        assert_eq!(parsed, SamplingSettings { top_k: 3, ..SamplingSettings::default() });
    }
}
