//! Forms of verdicts: how a judge is told to write one, and how it is read.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserializer;
use serde::de::{MapAccess, Visitor};

use super::error::Unreadable;
use super::prompt::Shown;
use super::settings::{Criterion, ModelJudge, SCALE, VerdictKind};
use super::verdict_line;

/// The verdicts that a judge may give.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Form {
    YesNo,
    Scale { worst: f64, best: f64 },
    Choices(BTreeMap<String, f64>),
    Rubric { criteria: Vec<Criterion>, worst: f64, best: f64 },
    Pair,
    Rank,
}

impl Form {
    pub(crate) fn of(settings: &ModelJudge) -> Self {
        let [worst, best] = settings.scale.unwrap_or(SCALE);
        match settings.verdict {
            VerdictKind::YesNo => Self::YesNo,
            VerdictKind::Scale => Self::Scale { worst, best },
            VerdictKind::Choices => Self::Choices(settings.choices.clone()),
            VerdictKind::Rubric => Self::Rubric { criteria: settings.criteria.clone(), worst, best },
            VerdictKind::Pairwise => Self::Pair,
            VerdictKind::Rank => Self::Rank,
        }
    }

    pub(crate) fn shown(&self) -> Shown {
        match self {
            Self::Pair => Shown::Pair,
            Self::Rank => Shown::Group,
            _ => Shown::One,
        }
    }

    /// The template of the program.
    pub(crate) fn default_prompt(&self) -> &'static str {
        match self {
            Self::YesNo => include_str!("prompts/yes_no.txt"),
            Self::Pair => include_str!("prompts/pairwise.txt"),
            Self::Rank => include_str!("prompts/rank.txt"),
            _ => include_str!("prompts/score.txt"),
        }
    }

    /// Names and descriptions of the criteria.
    pub(crate) fn criteria(&self) -> Vec<(&str, &str)> {
        match self {
            Self::Rubric { criteria, .. } => {
                criteria.iter().map(|c| (c.name.as_str(), c.description.as_str())).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Instructions for the form of the answer on `responses` responses.
    pub(crate) fn instructions(&self, nonce: &str, reasons: bool, responses: usize) -> String {
        let verdict = match self {
            Self::YesNo => "yes or no".to_owned(),
            Self::Scale { worst, best } => format!("a number from {worst} (worst) to {best} (best)"),
            Self::Choices(choices) => {
                let names: Vec<&str> = choices.keys().map(String::as_str).collect();
                format!("one of these: {}", names.join(", "))
            }
            Self::Rubric { criteria, worst, best } => {
                let names = criteria.iter().map(|criterion| criterion.name.clone());
                let object = object(names);
                format!(
                    "a JSON object on the same line with a number from {worst} (worst) to {best} (best) for each criterion: {object}"
                )
            }
            Self::Pair => "A if response A is better, B if response B is better, or tie".to_owned(),
            Self::Rank => {
                let object = object((1..=responses).map(|number| number.to_string()));
                format!("a JSON object on the same line with the number of each response: {object}")
            }
        };
        if reasons {
            format!(
                "Think about it first. Then end your answer with a line of its own that consists of `Verdict {nonce}: ` and {verdict}."
            )
        } else {
            format!("Answer with nothing but {verdict}.")
        }
    }

    /// The values of an answer on `responses` responses: one for a single response or a pair (that of the first response).
    pub(crate) fn read(
        &self,
        answer: &str,
        nonce: &str,
        reasons: bool,
        responses: usize,
    ) -> Result<Vec<f64>, Unreadable> {
        let verdict =
            if reasons { verdict_line::last_line(answer, nonce)? } else { verdict_line::whole(answer)? };
        self.values(verdict, responses).ok_or(Unreadable::NotPermitted)
    }

    fn values(&self, verdict: &str, responses: usize) -> Option<Vec<f64>> {
        let word = verdict.strip_suffix('.').unwrap_or(verdict).trim();
        let value = match self {
            Self::YesNo => f64::from(u8::from(is_yes(word)?)),
            Self::Scale { worst, best } => on_scale(word.parse().ok()?, *worst, *best)?,
            Self::Choices(choices) => {
                let equals = |name: &str| name == verdict || name.to_lowercase() == word.to_lowercase();
                *choices.iter().find(|(name, _)| equals(name))?.1
            }
            Self::Rubric { criteria, worst, best } => {
                let names: Vec<String> = criteria.iter().map(|c| c.name.clone()).collect();
                let numbers = numbers(verdict, &names)?;
                let total: f64 = criteria.iter().map(|c| c.weight).sum();
                let mut sum = 0.0;
                for (criterion, number) in criteria.iter().zip(numbers) {
                    sum += criterion.weight * on_scale(number, *worst, *best)?;
                }
                sum / total
            }
            Self::Pair => match word.to_lowercase().as_str() {
                "a" => 1.0,
                "b" => 0.0,
                "tie" => 0.5,
                _ => return None,
            },
            Self::Rank => {
                let names: Vec<String> = (1..=responses).map(|number| number.to_string()).collect();
                let numbers = numbers(verdict, &names)?;
                return numbers.iter().all(|n| (0.0..=1.0).contains(n)).then_some(numbers);
            }
        };
        Some(vec![value])
    }
}

/// True for yes, false for no.
pub(crate) fn is_yes(word: &str) -> Option<bool> {
    let word = word.trim();
    if word.eq_ignore_ascii_case("yes") {
        return Some(true);
    }
    word.eq_ignore_ascii_case("no").then_some(false)
}

/// Place on a scale: 0 for the worst number, 1 for the best.
fn on_scale(number: f64, worst: f64, best: f64) -> Option<f64> {
    let place = (number - worst) / (best - worst);
    (0.0..=1.0).contains(&place).then_some(place)
}

/// A JSON object that shows the form of an answer.
fn object(names: impl Iterator<Item = String>) -> String {
    let entries: Vec<String> =
        names.map(|name| format!("{}: NUMBER", serde_json::Value::from(name))).collect();
    format!("{{{}}}", entries.join(", "))
}

/// The numbers of a JSON object with exactly the given names, each once, in their order.
fn numbers(json: &str, names: &[String]) -> Option<Vec<f64>> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let entries = reader.deserialize_map(Entries).ok()?;
    reader.end().ok()?;
    // With a repeated name, another one is missing.
    if entries.len() != names.len() {
        return None;
    }
    let number = |name: &String| {
        let mut found = entries.iter().filter(|(given, _)| given == name);
        found.next().map(|&(_, number)| number)
    };
    names.iter().map(number).collect()
}

/// The entries of an object, repeated ones included.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, f64)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries: Self::Value = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(form: &Form, verdict: &str, responses: usize) -> Option<Vec<f64>> {
        form.read(verdict, "n", false, responses).ok()
    }

    fn value(form: &Form, verdict: &str) -> Option<f64> {
        values(form, verdict, 1).map(|values| values[0])
    }

    #[test]
    fn verdicts_are_read_exactly() {
        let scale = Form::Scale { worst: 1.0, best: 10.0 };
        let choices = Form::Choices(BTreeMap::from([("Fully right".into(), 1.0), ("Wrong.".into(), -1.0)]));
        for (form, verdict, expected) in [
            (&Form::YesNo, "Yes.", Some(1.0)),
            (&Form::YesNo, "NO", Some(0.0)),
            (&Form::YesNo, "yes, but no", None),
            (&Form::YesNo, "yesterday", None),
            (&Form::YesNo, "1", None),
            (&scale, "10", Some(1.0)),
            (&scale, "5.5", Some(0.5)),
            (&scale, "0", None),
            (&scale, "11", None),
            (&scale, "7/10", None),
            (&scale, "NaN", None),
            (&scale, "inf", None),
            (&Form::Scale { worst: 5.0, best: 1.0 }, "2", Some(0.75)),
            (&choices, "fully right", Some(1.0)),
            (&choices, "Wrong.", Some(-1.0)),
            (&choices, "right", None),
            (&Form::Pair, "A", Some(1.0)),
            (&Form::Pair, "b.", Some(0.0)),
            (&Form::Pair, "Tie", Some(0.5)),
            (&Form::Pair, "A or B", None),
        ] {
            assert_eq!(value(form, verdict), expected, "{form:?}: {verdict}");
        }
    }

    #[test]
    fn objects_have_each_name_once() {
        let criterion =
            |name: &str, weight| Criterion { name: name.into(), description: String::new(), weight };
        let criteria = vec![criterion("right", 3.0), criterion("clear", 1.0)];
        let rubric = Form::Rubric { criteria, worst: 0.0, best: 10.0 };
        for (json, expected) in [
            (r#"{"right": 10, "clear": 0}"#, Some(0.75)),
            (r#"{"clear": 10, "right": 0}"#, Some(0.25)),
            (r#"{"right": 10}"#, None),
            (r#"{"right": 10, "clear": 0, "kind": 1}"#, None),
            (r#"{"right": 10, "right": 0}"#, None),
            (r#"{"right": 0, "right": 10, "clear": 10}"#, None),
            (r#"{"right": "10", "clear": 0}"#, None),
            (r#"{"right": 11, "clear": 0}"#, None),
            (r#"{"right": 10, "clear": 0} {}"#, None),
            ("[10, 0]", None),
        ] {
            assert_eq!(value(&rubric, json), expected, "{json}");
        }
        let rank = |json| values(&Form::Rank, json, 3);
        assert_eq!(rank(r#"{"1": 0, "3": 1.0, "2": 0.25}"#), Some(vec![0.0, 0.25, 1.0]));
        for json in
            [r#"{"1": 0, "2": 1}"#, r#"{"1": 0, "2": 1, "3": 1, "4": 1}"#, r#"{"1": 0, "2": 1, "3": 2}"#]
        {
            assert_eq!(rank(json), None, "{json}");
        }
    }

    /// The instructions name the form, so an echo of them must not have it.
    #[test]
    fn instructions_are_no_verdict() {
        let choices = Form::Choices(BTreeMap::from([("a".into(), 1.0)]));
        for form in [Form::YesNo, Form::Scale { worst: 1.0, best: 2.0 }, choices, Form::Pair, Form::Rank] {
            for reasons in [true, false] {
                let instructions = form.instructions("3fa9c1", reasons, 2);
                assert!(form.read(&instructions, "3fa9c1", reasons, 2).is_err(), "{instructions}");
            }
        }
    }
}
