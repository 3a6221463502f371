//! A request, independent of the API that it came through.

use rloom_core::SettingError;
use rloom_engine::SamplingSettings;
use serde_json::Value;

use crate::conversation::Conversation;
use crate::fields::Fields;
use crate::model::ServedModel;
use crate::problem::Problem;

/// Most stop strings of a request.
const MAX_STOPS: usize = 16;
/// Longest stop string in bytes.
const MAX_STOP_BYTES: usize = 1024;

/// What is to be completed.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    Conversation(Conversation),
    Text(String),
    Tokens(Vec<u32>),
}

/// Most completions of a request.
const MAX_CHOICES: u64 = 128;

/// A request for completions.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) input: Input,
    /// Field of the input, for errors.
    pub(crate) input_field: &'static str,
    pub(crate) sampling: Overrides,
    pub(crate) stream: bool,
    /// Report the log-probabilities of the sampled tokens.
    pub(crate) logprobs: bool,
    /// Completions, each sampled on its own.
    pub(crate) choices: u32,
}

/// Reads the number of completions.
pub(crate) fn choices(fields: &mut Fields) -> Result<u32, Problem> {
    match fields.integer("n")? {
        None => Ok(1),
        Some(n @ 1..=MAX_CHOICES) => Ok(n as u32),
        Some(_) => Err(fields.problem("n", format!("must be an integer from 1 to {MAX_CHOICES}"))),
    }
}

/// Sampling settings of a request; the model's apply where they are absent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overrides {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) seed: Option<u64>,
    pub(crate) max_tokens: Option<usize>,
    /// Name of `max_tokens` in the request.
    pub(crate) max_field: &'static str,
    pub(crate) stop: Vec<String>,
    /// Name of `stop` in the request.
    pub(crate) stop_field: &'static str,
}

impl Overrides {
    /// Reads the fields that all APIs have in common.
    pub(crate) fn read(fields: &mut Fields, max_field: &'static str) -> Result<Self, Problem> {
        let max_tokens = fields.integer(max_field)?;
        if max_tokens == Some(0) {
            return Err(fields.problem(max_field, "must be at least 1"));
        }
        let top_k = fields.integer("top_k")?;
        Ok(Self {
            temperature: fields.number("temperature")?,
            top_p: fields.number("top_p")?,
            top_k: top_k.map(|k| u32::try_from(k).unwrap_or(u32::MAX)),
            min_p: None,
            seed: None,
            max_tokens: max_tokens.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            max_field,
            stop: Vec::new(),
            stop_field: "stop",
        })
    }

    /// Reads fields that only OpenAI's older APIs have, and `min_p` of other servers.
    pub(crate) fn read_seed_and_stop(&mut self, fields: &mut Fields) -> Result<(), Problem> {
        self.min_p = fields.number("min_p")?;
        self.seed = match fields.take("seed") {
            None => None,
            Some(seed) => Some(
                seed.as_u64()
                    .or_else(|| seed.as_i64().map(|seed| seed as u64))
                    .ok_or_else(|| fields.problem("seed", "must be an integer of 64 bits"))?,
            ),
        };
        self.stop = stop_strings(fields, "stop")?;
        Ok(())
    }

    /// The settings of a completion with room for `room` tokens.
    pub(crate) fn resolve(&self, model: &ServedModel, room: usize) -> Result<SamplingSettings, Problem> {
        let defaults = &model.sampling;
        let most = defaults.max_new_tokens.min(room);
        let settings = SamplingSettings {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            max_new_tokens: self.max_tokens.unwrap_or(most).min(most),
            min_new_tokens: 0,
            stop: self.stop.clone(),
        };
        settings.validate().map_err(|error| self.invalid(&error))?;
        Ok(settings)
    }

    /// The settings of a completion of a session, which are `given` up to the length and further stop strings. What would make
    /// the policy that samples another than the one that is trained is refused.
    pub(crate) fn under(&self, given: &SamplingSettings, room: usize) -> Result<SamplingSettings, Problem> {
        let refused = |name: &str, off: &str| {
            Problem::field(
                name,
                format_args!(
                    "is only supported with {off} in a session: it would change the policy that is trained"
                ),
            )
        };
        if self.top_p.is_some_and(|p| p != 1.0 && p != given.top_p) {
            return Err(refused("top_p", "1"));
        }
        if self.top_k.is_some_and(|k| k != 0 && k != given.top_k) {
            return Err(refused("top_k", "0"));
        }
        if self.min_p.is_some_and(|p| p != 0.0 && p != given.min_p) {
            return Err(refused("min_p", "0"));
        }
        let most = given.max_new_tokens.min(room);
        let mut settings = given.clone();
        settings.max_new_tokens = self.max_tokens.unwrap_or(most).min(most);
        settings.min_new_tokens = settings.min_new_tokens.min(settings.max_new_tokens);
        settings.stop.extend(self.stop.iter().filter(|stop| !given.stop.contains(stop)).cloned());
        settings.validate().map_err(|error| self.invalid(&error))?;
        Ok(settings)
    }

    fn invalid(&self, error: &SettingError) -> Problem {
        let field = match error.key {
            "max_new_tokens" => self.max_field,
            "stop" => self.stop_field,
            other => other,
        };
        Problem { param: Some(field.to_owned()), ..Problem::invalid(error.to_string()) }
    }
}

/// Reads stop strings: one, or an array.
pub(crate) fn stop_strings(fields: &mut Fields, name: &str) -> Result<Vec<String>, Problem> {
    let stops = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several
            .into_iter()
            .map(|stop| match stop {
                Value::String(text) => Ok(text),
                _ => Err(fields.problem(name, "must contain strings only")),
            })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(fields.problem(name, "must be a string or an array of strings")),
    };
    if stops.len() > MAX_STOPS || stops.iter().any(|stop| stop.len() > MAX_STOP_BYTES) {
        let limits = format!("may have at most {MAX_STOPS} strings of at most {MAX_STOP_BYTES} bytes each");
        return Err(fields.problem(name, limits));
    }
    if stops.iter().any(String::is_empty) {
        return Err(fields.problem(name, "must not contain an empty string"));
    }
    Ok(stops)
}
