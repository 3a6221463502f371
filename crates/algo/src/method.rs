use std::{fmt, str::FromStr};

use crate::{AlgoError, AlgorithmSettings, Method};

/// Kind of the data that a method learns from instead of sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataKind {
    /// Completions to imitate: groups of one episode.
    Demonstrations,
    /// Preferred and rejected completions of the same prompt: groups of two episodes, the preferred one first.
    Pairs,
    /// Completions that are desirable or not: groups of one episode.
    Labels,
    /// Completions whose steps are right or wrong: groups of one episode.
    Steps,
}

impl DataKind {
    /// The kind in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Demonstrations => "demonstrations",
            Self::Pairs => "preference pairs",
            Self::Labels => "labelled completions",
            Self::Steps => "labelled steps",
        }
    }
}

impl Method {
    /// Kind of the data that the method learns from; `None` for a method that samples.
    pub fn data(self) -> Option<DataKind> {
        match (self, self.settings()) {
            (Self::RewardModel, _) => Some(DataKind::Pairs),
            (Self::Prm, _) => Some(DataKind::Steps),
            (_, None) => Some(DataKind::Demonstrations),
            (_, Some(preset)) if preset.distillation.is_some() => Some(DataKind::Demonstrations),
            // Groups are sampled.
            (_, Some(preset)) if preset.group_size.is_some() => None,
            (_, Some(preset)) => preset.preference?.kind.map(|kind| kind.defaults().data()),
        }
    }

    /// True if the method trains a reward model, not a policy.
    pub fn trains_reward_model(self) -> bool {
        matches!(self, Self::RewardModel | Self::Prm)
    }

    /// True if the method learns from given completions, without sampling or rewards. A distillation may sample as well.
    pub fn is_supervised(self) -> bool {
        self.data().is_some()
    }

    /// True if the method samples completions with these settings.
    pub fn samples(self, settings: &AlgorithmSettings) -> bool {
        match self.settings().and_then(|preset| preset.distillation) {
            Some(_) => settings.distillation.is_some_and(|distillation| distillation.samples()),
            None => !self.is_supervised(),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Method {
    type Err = AlgoError;

    /// Parses a name; the error suggests a similar one.
    fn from_str(name: &str) -> Result<Self, AlgoError> {
        if let Some(method) = Self::ALL.iter().copied().find(|m| m.name() == name) {
            return Ok(method);
        }
        let plain = |s: &str| s.to_lowercase().replace("++", "_pp").replace(['-', '.', ' '], "_");
        let asked = plain(name);
        let nearest = Self::ALL
            .iter()
            .copied()
            .map(|m| (edit_distance(&asked, m.name()), m))
            .min_by_key(|&(distance, _)| distance)
            .filter(|&(distance, m)| distance <= 2 && distance < m.name().len() / 2 + 1)
            .map(|(_, m)| m);
        Err(AlgoError::UnknownMethod { name: name.to_owned(), nearest })
    }
}

/// Insertions, deletions, substitutions and exchanges of neighbours between two short ASCII names.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // Distances of the prefixes of `a`, the latest last, to all prefixes of `b`.
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let substituted = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = substituted.min(row[j - 1] + 1).min(rows[i - 1][j] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use miette::Diagnostic;

    #[test]
    fn names_round_trip_and_serde_agrees() {
        for &m in Method::ALL {
            assert_eq!(m.name().parse::<Method>().unwrap(), m);
            assert_eq!(serde_json::to_value(m).unwrap(), m.name());
        }
    }

    #[test]
    fn close_names_are_suggested() {
        let nearest = |s: &str| match s.parse::<Method>() {
            Err(AlgoError::UnknownMethod { nearest, .. }) => nearest,
            other => panic!("{other:?}"),
        };
        assert_eq!(nearest("GRPO"), Some(Method::Grpo));
        assert_eq!(nearest("dr-grpo"), Some(Method::DrGrpo));
        assert_eq!(nearest("drgrpo"), Some(Method::DrGrpo));
        assert_eq!(nearest("reinforce++"), Some(Method::ReinforcePp));
        assert_eq!(nearest("rlo"), Some(Method::Rloo));
        assert_eq!(nearest("impala"), None);
        let error = "gpro".parse::<Method>().unwrap_err();
        assert_eq!(error.help().unwrap().to_string(), "did you mean \"grpo\"?");
    }
}
