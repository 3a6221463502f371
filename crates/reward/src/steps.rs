//! Values of completions from the steps that they consist of.

use rloom_core::{LabelledStep, LabelledSteps, SettingProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ComponentError;

/// A process-reward model judges the steps of a completion: its value is made of the probabilities that they are right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StepRewards {
    /// How the probabilities of the steps become one value.
    pub reduce: StepReduction,
    /// Text that ends a step. It is that of the rows that the model was trained on.
    pub separator: String,
}

impl Default for StepRewards {
    fn default() -> Self {
        Self { reduce: StepReduction::default(), separator: "\n".to_owned() }
    }
}

/// A function of the probabilities that steps are right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepReduction {
    /// The least.
    #[default]
    Min,
    /// The product: the probability that all are right.
    Product,
    /// The mean.
    Mean,
    /// That of the last step.
    Last,
}

impl StepReduction {
    /// The name in recipes.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Product => "product",
            Self::Mean => "mean",
            Self::Last => "last",
        }
    }

    /// The value of a completion with these steps, of which there is at least one.
    fn of(self, steps: &[f64]) -> f64 {
        match self {
            Self::Min => steps.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Product => steps.iter().product(),
            Self::Mean => steps.iter().sum::<f64>() / steps.len() as f64,
            Self::Last => steps.last().copied().unwrap_or(f64::NAN),
        }
    }
}

impl StepRewards {
    pub(crate) fn validate(&self) -> Result<(), ComponentError> {
        if self.separator.is_empty() {
            return Err(SettingProblem::Empty.at("steps.separator").into());
        }
        Ok(())
    }

    /// The value of a completion from the logits of its steps, each of right less wrong.
    pub fn value(&self, logits: &[f32]) -> f64 {
        let steps: Vec<f64> = logits.iter().map(|&logit| 1.0 / (1.0 + f64::from(-logit).exp())).collect();
        self.reduce.of(&steps)
    }

    /// The steps of a completion, as those of a row. Blank ones are left out, unless there is no other.
    pub fn divide(&self, completion: &str) -> LabelledSteps {
        let step = |text: &str| LabelledStep { text: text.to_owned(), label: true };
        let mut steps: Vec<LabelledStep> =
            completion.split(&self.separator).filter(|text| !text.trim().is_empty()).map(step).collect();
        if steps.is_empty() {
            steps.push(step(completion.trim()));
        }
        LabelledSteps { steps, separator: self.separator.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(reduce: StepReduction) -> StepRewards {
        StepRewards { reduce, ..StepRewards::default() }
    }

    #[test]
    fn probabilities_become_one_value() {
        // σ(0) = 0.5, σ(log 4) = 0.8, σ(−log 4) = 0.2.
        let logits = [0.0, 4.0f32.ln(), -(4.0f32.ln())];
        for (reduce, wanted) in [
            (StepReduction::Min, 0.2),
            (StepReduction::Product, 0.08),
            (StepReduction::Mean, 0.5),
            (StepReduction::Last, 0.2),
        ] {
            let got = of(reduce).value(&logits);
            assert!((got - wanted).abs() < 1e-7, "{}: {got}", reduce.name());
        }
        assert!((of(StepReduction::Last).value(&logits[..2]) - 0.8).abs() < 1e-7);
    }

    #[test]
    fn completions_are_divided_at_separators() {
        let texts = |completion: &str| -> Vec<String> {
            let steps = StepRewards::default().divide(completion).steps;
            steps.into_iter().map(|step| step.text).collect()
        };
        assert_eq!(texts("1+2\n=3"), ["1+2", "=3"]);
        assert_eq!(texts("1+2\n\n =3\n"), ["1+2", " =3"]);
        assert_eq!(texts("\n \n"), [""]);
        assert_eq!(texts(""), [""]);
    }

    #[test]
    fn names_are_those_of_recipes() {
        for reduce in [StepReduction::Min, StepReduction::Product, StepReduction::Mean, StepReduction::Last] {
            assert_eq!(serde_json::to_value(reduce).unwrap(), reduce.name());
        }
    }
}
