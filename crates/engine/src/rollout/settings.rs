use rloom_core::{SettingError, SettingProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
/// Smallest temperature above 0 (greedy). Log-probabilities are differences of `z = logit / temperature` in f32, which
/// resolves 2⁻¹⁰ nats at `z = 10⁴`, the logit 100, and 2⁻⁴ nats at `z = 10⁶`, the logit 10⁴; at far lower temperatures
/// `z` overflows. Sampling is practically greedy here: a logit 0.1 lower is e⁻¹⁰ times as probable. Other engines set
/// lower temperatures to this one (vLLM), so that the reported log-probabilities would be of another distribution.
const MIN_TEMPERATURE: f32 = 0.01;

/// Sampling settings of a request.
///
/// Filters apply in the order of `transformers`: temperature, top-k, top-p, min-p, each to the tokens left by the one
/// before. The log-probability reported for a token is always that of the *full* softmax at the temperature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingSettings {
    /// Divisor of the logits, at least 0.01. 0 is greedy decoding: the most probable token, the lowest id among equals;
    /// its log-probabilities are reported at temperature 1.
    pub temperature: f32,
    /// Samples from the K most probable tokens, ties with the last one included (0: no limit).
    pub top_k: u32,
    /// Samples from the smallest set of most probable tokens with a total probability of at least `top_p` (1: all).
    pub top_p: f32,
    /// Samples from the tokens at least `min_p` times as probable as the most probable one (0: all).
    pub min_p: f32,
    /// Maximum length of a completion in tokens, the stop token included.
    pub max_new_tokens: usize,
    /// Minimum length of a completion: stop tokens are not sampled before it. Does not affect stop strings.
    pub min_new_tokens: usize,
    /// Strings that end generation once the completion's text contains one. The completion keeps all tokens up to and
    /// including the one that completes the match.
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

    /// True if the most probable token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Temperature of the reported log-probabilities; 1 for greedy decoding.
    pub fn reported_temperature(&self) -> f32 {
        if self.is_greedy() { 1.0 } else { self.temperature }
    }

    /// Returns the first setting that makes the sampling distribution differ from the full softmax at the temperature.
    /// Training on such samples is off-policy, which the reported log-probabilities do not show.
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

    /// Checks the range of each value.
    pub fn validate(&self) -> Result<(), SettingError> {
        let t = self.temperature;
        if !(t == 0.0 || (t.is_finite() && t >= MIN_TEMPERATURE)) {
            return refuse("temperature", t.to_string(), "0 (greedy decoding) or at least 0.01");
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

fn refuse(key: &'static str, value: String, expected: &'static str) -> Result<(), SettingError> {
    Err(SettingProblem::Invalid { value, expected }.at(key))
}

/// Factor of the logits at a (positive) temperature. The only definition, used by sampler and trainer: the rounding of
/// the quotient affects the bits of every log-probability.
pub fn inverse_temperature(temperature: f32) -> f32 {
    1.0 / temperature
}

/// Speculative decoding. Tokens and log-probabilities are bitwise identical with and without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Speculation {
    /// One token of each sequence per step.
    #[default]
    Off,
    /// Drafts the tokens that followed the last occurrence of a sequence's latest tokens, and verifies them in one step.
    /// Each lane measures acceptance rates and the cost of extra rows and drafts only as long as that pays: not at all
    /// if steps are bound by arithmetic.
    Ngram,
}

/// Number format of the weights that completions are sampled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RolloutQuantization {
    /// 8 bits, with one scale for each row of a linear layer.
    Int8,
}

impl RolloutQuantization {
    /// Name in configuration and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
        }
    }
}

/// Resources of the embedded rollout engine. Except for `quantize`, they affect speed and memory, never a token or a
/// log-probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutSettings {
    /// Threads for generation. 0 shares the threads of the engine's compute context; any other number creates the
    /// engine's own threads, so that it runs concurrently with training.
    pub threads: usize,
    /// Number of lanes, each with its own threads, key-value blocks and batch. 0 (automatic): one per thread for small
    /// models, up to 16, or up to 4 if the weights do not fit in the processor's last-level cache; for large ones a
    /// single lane that uses all threads within each step.
    pub lanes: usize,
    /// Memory for keys and values over all lanes, in MiB. 0 (automatic): enough for `max_batch` sequences of full
    /// context in every lane, but at most 2 GiB (and never less than one such sequence per lane, up to 64 GiB).
    pub kv_memory_mib: usize,
    /// Maximum number of running sequences in a lane.
    pub max_batch: usize,
    /// Maximum number of prompt tokens that a step of a lane computes in addition to its decoding sequences.
    pub prefill_chunk: usize,
    /// Speculative decoding.
    pub speculation: Speculation,
    /// Number format in which completions read the weights of linear layers and language head. `"int8"` reads a quarter of the
    /// bytes of f32, half of those of bf16. Its log-probabilities differ from the trainer's, and losses correct for that, as
    /// with stale samples. Default: that of the computation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantize: Option<RolloutQuantization>,
    /// Timeout of one completion, from its submission to the engine to its result, and of one response of the environment,
    /// in seconds.
    pub timeout_seconds: f64,
    /// Number of times each lane may restart after its thread panicked or its model failed. Requests of a lane that
    /// restarts return a retryable error. With 0 the first failure ends the engine.
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
            quantize: None,
            timeout_seconds: 3600.0,
            restarts: 0,
        }
    }
}

/// A year: larger timeouts would overflow when added to a point in time.
pub(super) const MAX_SECONDS: f64 = 31_536_000.0;

impl RolloutSettings {
    /// Checks the range of each value.
    pub fn validate(&self) -> Result<(), SettingError> {
        if self.threads > 1024 {
            return refuse("threads", self.threads.to_string(), "at most 1024 (0: all available)");
        }
        if self.lanes > 1024 {
            return refuse("lanes", self.lanes.to_string(), "at most 1024 (0: automatic)");
        }
        if self.max_batch == 0 {
            return refuse("max_batch", "0".to_owned(), "at least 1");
        }
        if self.prefill_chunk == 0 {
            return refuse("prefill_chunk", "0".to_owned(), "at least 1");
        }
        if !(self.timeout_seconds > 0.0 && self.timeout_seconds <= MAX_SECONDS) {
            let value = self.timeout_seconds.to_string();
            return refuse("timeout_seconds", value, "above 0 and at most 31536000");
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
            (SamplingSettings { temperature: 1e-30, ..full.clone() }, "temperature"),
            (SamplingSettings { temperature: 0.0099, ..full.clone() }, "temperature"),
            (SamplingSettings { temperature: f32::INFINITY, ..full.clone() }, "temperature"),
            (SamplingSettings { top_p: 0.0, ..full.clone() }, "top_p"),
            (SamplingSettings { min_p: 1.5, ..full.clone() }, "min_p"),
            (SamplingSettings { max_new_tokens: 0, ..full.clone() }, "max_new_tokens"),
            (SamplingSettings { min_new_tokens: 300, ..full.clone() }, "min_new_tokens"),
            (SamplingSettings { stop: vec![String::new()], ..full }, "stop"),
        ];
        for (settings, name) in cases {
            let message = settings.validate().unwrap_err().to_string();
            assert!(message.starts_with(&format!("`{name}`: must be ")), "{message}");
        }
        let engine = RolloutSettings { timeout_seconds: 0.0, ..RolloutSettings::default() };
        assert!(engine.validate().is_err());
        assert!(RolloutSettings::default().validate().is_ok());
    }

    #[test]
    fn the_lowest_temperature_is_stated_and_keeps_large_logits_apart() {
        for temperature in [0.0, MIN_TEMPERATURE, 1.0, f32::MAX] {
            SamplingSettings { temperature, ..SamplingSettings::default() }.validate().unwrap();
        }
        let low = SamplingSettings { temperature: 1e-30, ..SamplingSettings::default() };
        let message = low.validate().unwrap_err().to_string();
        let stated = format!("0 (greedy decoding) or at least {MIN_TEMPERATURE}, but is");
        assert!(message.contains(&stated), "{message}");
        let scale = inverse_temperature(MIN_TEMPERATURE);
        for logit in [100.0_f32, 1e4] {
            let next = f32::from_bits(logit.to_bits() - 1);
            assert!((logit * scale).is_finite() && logit * scale > next * scale, "{logit}");
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        let json = r#"{"temperature": 0.7, "topk": 3}"#;
        assert!(serde_json::from_str::<SamplingSettings>(json).is_err());
        let parsed: SamplingSettings = serde_json::from_str(r#"{"top_k": 3}"#).unwrap();
        assert_eq!(parsed, SamplingSettings { top_k: 3, ..SamplingSettings::default() });
    }
}
