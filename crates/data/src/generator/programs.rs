use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use rloom_core::ValueRange;

use super::{ATTEMPTS, GeneratedTask, RandomDraws, SplitShares, check_sizes, sampled_len, task_key};
use crate::{DataError, Split};

/// Tiny programs: the prompt `add 7, times 3:` asks for the Python function `def f(x):return (x+7)*3`.
///
/// Each task has tests that call the function, for the reward `code`. Some demonstrations are careless: without the parentheses,
/// their program has another result. A fixed hash of the numbers assigns tasks to splits. Tasks are sampled with
/// repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProgramsSettings {
    /// Largest number, from 3 to 999999; the smallest is 2.
    pub max_number: u64,
    /// Fraction of the demonstrations without the parentheses, between 0 and 1.
    pub careless_share: f64,
    /// Fraction of the pairs of numbers that is held out, between 0.01 and 0.99.
    pub held_out_share: f64,
    /// Fraction of the remaining pairs that demonstrations use, between 0.01 and 0.99; training uses the rest.
    pub demonstration_share: f64,
    /// Number of tasks per epoch of demonstrations or training. Default: 65536.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Number of evaluation tasks. Default: 512.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_size: Option<u64>,
}

impl Default for ProgramsSettings {
    fn default() -> Self {
        Self {
            max_number: 99,
            careless_share: 0.6,
            held_out_share: 0.25,
            demonstration_share: 0.5,
            size: None,
            eval_size: None,
        }
    }
}

impl ProgramsSettings {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), DataError> {
        ValueRange::between(3.0, 999_999.0).check("max_number", self.max_number as f64)?;
        ValueRange::between(0.0, 1.0).check("careless_share", self.careless_share)?;
        self.shares().validate()?;
        check_sizes(self.size, self.eval_size)
    }

    /// All characters of the prompts and completions, sorted.
    pub fn alphabet(&self) -> String {
        " ()*+,0123456789:adefimnrstux".into()
    }

    fn shares(&self) -> SplitShares {
        SplitShares { held_out: self.held_out_share, demonstration: self.demonstration_share }
    }
}

/// The tasks of one split.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    settings: ProgramsSettings,
    split: Split,
    seed: u64,
}

impl Programs {
    pub(crate) fn new(settings: &ProgramsSettings, split: Split, seed: u64) -> Result<Self, DataError> {
        settings.validate()?;
        Ok(Self { settings: settings.clone(), split, seed })
    }

    pub(crate) fn len(&self) -> u64 {
        sampled_len(self.split, self.settings.size, self.settings.eval_size)
    }

    pub(crate) fn task(&self, position: u64) -> Result<GeneratedTask, DataError> {
        let s = &self.settings;
        let mut draws = RandomDraws::new(task_key(self.seed, self.split, position));
        for _ in 0..ATTEMPTS {
            let (a, b) = (draws.between(2, s.max_number), draws.between(2, s.max_number));
            if s.shares().split_of(&[a, b]) != self.split {
                continue;
            }
            let is_careless = draws.uniform() < s.careless_share;
            let expression = if is_careless { format!("x+{a}*{b}") } else { format!("(x+{a})*{b}") };
            let test = |x: u64| json!({ "call": "f", "arguments": [x], "expected": (x + a) * b });
            return Ok(GeneratedTask {
                prompt: format!("add {a}, times {b}:"),
                answer: format!("def f(x):return (x+{a})*{b}"),
                demonstration: format!("def f(x):return {expression}").into(),
                tests: Some(json!([test(1), test(10)])),
            });
        }
        Err(DataError::Exhausted { position, attempts: ATTEMPTS, raise: "`max_number`" })
    }
}
