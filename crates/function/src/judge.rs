//! Verdicts of functions on samples.

use std::sync::Arc;

use rloom_core::PromptSource;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::error::excerpt;
use crate::http::HttpClient;
use crate::{FunctionError, Host, Malformed, Pool};

/// A completion with its context, as functions receive it.
#[derive(Debug, Clone, Serialize)]
pub struct Sample<'a> {
    /// Name within the stage: ticket and index.
    pub sample: String,
    /// Index of the stage in the recipe.
    pub stage: u32,
    /// Index of the task in its dataset.
    pub task: u64,
    /// Text or list of messages.
    #[serde(serialize_with = "untagged")]
    pub prompt: &'a PromptSource,
    /// The prompt as the model receives it, special tokens included.
    pub prompt_text: &'a str,
    /// Text of the policy, without special tokens.
    pub completion: &'a str,
    /// Tokens of the policy.
    pub tokens: &'a [u32],
    /// Number of training steps of the policy that began the completion.
    pub version: u64,
    /// Reference answer; empty if there is none.
    pub answer: &'a str,
    /// Domain of the task.
    pub domain: &'a str,
    /// Reason for the end of generation.
    pub stop: &'a str,
    /// True if a limit ended the completion.
    pub truncated: bool,
    /// Step rewards of the environment.
    pub steps: &'a [f64],
    /// Other fields of the dataset's row.
    pub row: &'a Map<String, Value>,
    /// Seed of the run.
    pub seed: u64,
}

fn untagged<S: Serializer>(prompt: &PromptSource, serializer: S) -> Result<S::Ok, S::Error> {
    match prompt {
        PromptSource::Text(text) => text.serialize(serializer),
        PromptSource::Messages(messages) => messages.serialize(serializer),
    }
}

/// Verdict of a function on a sample.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleVerdict {
    /// The reward; `None` if the function does not apply.
    pub value: Option<f64>,
    /// True if the task is solved.
    #[serde(default)]
    pub solved: Option<bool>,
    /// True if an answer was found.
    #[serde(default)]
    pub parsed: Option<bool>,
}

/// Verdicts on the samples of one call, in order, with the numbers that the function reported.
#[derive(Debug, Default)]
pub struct Verdicts {
    /// One for each sample.
    pub verdicts: Vec<SampleVerdict>,
    /// Numbers by name.
    pub metrics: Map<String, Value>,
}

/// A function that judges samples.
#[derive(Debug)]
pub struct Judge(Backend);

#[derive(Debug)]
enum Backend {
    Pool(Pool),
    Http(HttpClient),
}

impl From<Pool> for Judge {
    fn from(pool: Pool) -> Self {
        Self(Backend::Pool(pool))
    }
}

impl From<HttpClient> for Judge {
    fn from(client: HttpClient) -> Self {
        Self(Backend::Http(client))
    }
}

impl Judge {
    /// Has the processes of the function start on other machines.
    pub fn place(&self, host: Arc<dyn Host>) {
        match &self.0 {
            Backend::Pool(pool) => pool.place(host),
            Backend::Http(_) => {}
        }
    }

    /// Loads the function. Returns the error of one that cannot be loaded. Servers are not asked.
    pub fn check(&self) -> Result<(), FunctionError> {
        match &self.0 {
            Backend::Pool(pool) => pool.check(),
            Backend::Http(_) => Ok(()),
        }
    }

    /// Ends the processes of the function: calls in flight and later ones fail.
    pub fn close(&self) {
        match &self.0 {
            Backend::Pool(pool) => pool.close(),
            Backend::Http(_) => {}
        }
    }

    /// Number of calls that are served at a time.
    pub fn workers(&self) -> usize {
        match &self.0 {
            Backend::Pool(pool) => pool.workers(),
            Backend::Http(client) => client.connections(),
        }
    }

    /// Judges the samples in one call, which waits for the answer. A failed call is not repeated.
    pub fn judge(&self, samples: &[Sample<'_>]) -> Result<Verdicts, FunctionError> {
        let body = json!({ "samples": samples });
        let (reply, name) = match &self.0 {
            Backend::Pool(pool) => (pool.call_once("judge", body)?, pool.name()),
            Backend::Http(client) => (client.call(&json!({ "v": 1, "judge": body }))?, client.url()),
        };
        let malformed =
            |problem| FunctionError::Malformed { function: name.to_owned(), problem, stderr: String::new() };
        let given = reply.verdicts.ok_or_else(|| malformed(Malformed::Missing { expected: "verdicts" }))?;
        if given.len() != samples.len() {
            return Err(malformed(Malformed::Count { expected: samples.len(), found: given.len() }));
        }
        let verdicts = given.iter().map(read).collect::<Result<_, _>>().map_err(malformed)?;
        Ok(Verdicts { verdicts, metrics: reply.metrics })
    }
}

/// Reads a verdict: a number, null, or an object.
fn read(verdict: &Value) -> Result<SampleVerdict, Malformed> {
    let value = |value: Option<f64>| SampleVerdict { value, ..SampleVerdict::default() };
    let invalid = |verdict: &Value| Malformed::Value { value: excerpt(&verdict.to_string()) };
    match verdict {
        Value::Null => Ok(value(None)),
        Value::Number(number) => {
            number.as_f64().filter(|n| n.is_finite()).map(|n| value(Some(n))).ok_or_else(|| invalid(verdict))
        }
        Value::Object(_) => serde_json::from_value(verdict.clone()).map_err(|_| invalid(verdict)),
        _ => Err(invalid(verdict)),
    }
}
