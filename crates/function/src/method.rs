//! Functions over numbers, which are parts of an algorithm: advantages, filters, losses.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::protocol::Reply;
use crate::settings::{CALLER, python_peer};
use crate::{FunctionError, Limits, Malformed, Pool, Role};

/// A function over numbers in one process.
#[derive(Debug)]
pub struct MethodFunction(Pool);

/// Completions whose advantages a function computes, or of which it decides if they are trained on. The arrays have an
/// entry for each completion.
#[derive(Debug, Default, Serialize)]
pub struct Completions<'a> {
    /// The batch, from 0.
    pub step: u64,
    /// Total reward; `None` where none applies.
    pub rewards: Vec<Option<f64>>,
    /// Index of the group.
    pub groups: Vec<usize>,
    /// Number of policy tokens.
    pub lengths: Vec<usize>,
    /// True if a limit ended the completion.
    pub truncated: Vec<bool>,
    /// Rewards by the name of their component.
    pub components: Map<String, Value>,
    /// Fields of the dataset's row.
    pub rows: Vec<&'a Map<String, Value>>,
}

/// A micro-batch whose loss a function computes. Arrays are flat over the policy tokens of its sequences.
#[derive(Debug, Serialize)]
pub struct LossCall<'a> {
    /// The batch, from 0.
    pub step: u64,
    /// Policy tokens of each sequence.
    pub lengths: Vec<usize>,
    /// Divisor of each sequence's terms.
    pub divisors: Vec<f64>,
    /// True for sequences that are excluded from training.
    pub masked: Vec<bool>,
    /// Policy tokens of the whole optimiser step.
    pub tokens: u64,
    /// Sequences of the whole optimiser step.
    pub sequences: u64,
    /// Limit on the policy tokens of a sequence.
    pub completion_limit: u64,
    /// Log-probabilities under the policy.
    #[serde(serialize_with = "encoded")]
    pub logprob: &'a [f32],
    /// The same log-probabilities, for factors that are held constant.
    #[serde(serialize_with = "encoded")]
    pub held: &'a [f32],
    /// Denominator of the ratio.
    #[serde(serialize_with = "encoded")]
    pub old: &'a [f32],
    /// Log-probabilities under the sampler.
    #[serde(serialize_with = "encoded")]
    pub behavior: &'a [f32],
    /// Log-probabilities under the reference model; empty without one.
    #[serde(serialize_with = "encoded")]
    pub reference: &'a [f32],
    /// Entropies of the policy.
    #[serde(serialize_with = "encoded")]
    pub entropy: &'a [f32],
    /// Advantages.
    #[serde(serialize_with = "encoded")]
    pub advantage: &'a [f32],
}

/// A loss over a micro-batch and its derivatives.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LossAnswer {
    /// The loss.
    pub value: f64,
    /// Derivative by each log-probability.
    pub d_logprob: Vec<f64>,
    /// Derivative by each entropy.
    pub d_entropy: Vec<f64>,
}

/// A loss in an answer; arrays are in Base64.
#[derive(Debug, Deserialize)]
pub(crate) struct LossBody {
    value: f64,
    d_logprob: String,
    #[serde(default)]
    d_entropy: Option<String>,
}

/// Little-endian bytes in Base64: exact, and faster to read than decimal numbers.
fn encoded<S: Serializer>(numbers: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn decoded(text: &str) -> Result<Vec<f64>, Malformed> {
    let bytes = STANDARD.decode(text).unwrap_or_default();
    let (numbers, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || bytes.is_empty() != text.is_empty() {
        return Err(Malformed::Missing { expected: "arrays of 64-bit numbers in Base64" });
    }
    Ok(numbers.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect())
}

impl MethodFunction {
    /// The function `file.py:name` or `caller:name`, called by the interpreter `python`; no process starts yet.
    pub fn new(function: &str, python: &str, role: Role, timeout: Duration) -> Result<Self, FunctionError> {
        let limits = Limits { workers: 1, timeout, recycle: None, memory: None };
        Ok(Self(Pool::new(python_peer(function, python, role)?, limits)))
    }

    /// Name of the function in messages.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Loads the function. Returns the error of one that cannot be loaded.
    pub fn check(&self) -> Result<(), FunctionError> {
        self.0.check()
    }

    /// The advantages of each completion: one for all of its tokens, or one for each.
    pub fn advantages(&self, completions: &Completions<'_>) -> Result<Vec<Vec<f64>>, FunctionError> {
        let reply = self.call(&json!(completions))?;
        let found = reply.advantages.ok_or_else(|| self.missing("advantages"))?;
        let (expected, got) = (completions.lengths.len(), found.len());
        if got != expected {
            return Err(self.malformed(Malformed::Count { expected, found: got }));
        }
        Ok(found)
    }

    /// True if a group is trained on.
    pub fn keeps(&self, group: &Completions<'_>) -> Result<bool, FunctionError> {
        self.call(&json!(group))?.keep.ok_or_else(|| self.missing("keep"))
    }

    /// The loss of a micro-batch.
    pub fn loss(&self, micro_batch: &LossCall<'_>) -> Result<LossAnswer, FunctionError> {
        let LossBody { value, d_logprob, d_entropy } =
            self.call(&json!(micro_batch))?.loss.ok_or_else(|| self.missing("loss"))?;
        let decoded = |text: &str| decoded(text).map_err(|problem| self.malformed(problem));
        let expected = micro_batch.logprob.len();
        let d_logprob = decoded(&d_logprob)?;
        let d_entropy = d_entropy.map_or_else(|| Ok(vec![0.0; expected]), |text| decoded(&text))?;
        for array in [&d_logprob, &d_entropy] {
            if array.len() != expected {
                return Err(self.malformed(Malformed::Coefficients { expected, found: array.len() }));
            }
        }
        Ok(LossAnswer { value, d_logprob, d_entropy })
    }

    fn call(&self, numbers: &Value) -> Result<Reply, FunctionError> {
        self.0.call("compute", json!({ "numbers": numbers }))
    }

    fn missing(&self, expected: &'static str) -> FunctionError {
        self.malformed(Malformed::Missing { expected })
    }

    fn malformed(&self, problem: Malformed) -> FunctionError {
        FunctionError::Malformed { function: self.name().to_owned(), problem, stderr: String::new() }
    }
}

/// The file of a function `file.py:name`; `None` for a caller's.
pub fn function_file(function: &str) -> Option<PathBuf> {
    let (file, _) = function.rsplit_once(':')?;
    (!function.starts_with(CALLER)).then(|| PathBuf::from(file))
}

/// The name of a function with an absolute path.
pub fn absolute_function(function: &str) -> String {
    let absolute = || {
        let (_, name) = function.rsplit_once(':')?;
        let file = std::path::absolute(function_file(function)?).ok()?;
        Some(format!("{}:{name}", file.display()))
    };
    absolute().unwrap_or_else(|| function.to_owned())
}
