//! Completions in a file.

use std::path::Path;

use serde::Deserialize;

use super::RewardTestError;

/// A completion to judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenCompletion {
    /// Index of its task.
    pub task: u64,
    /// The text.
    pub completion: String,
    /// True if a limit cut it off.
    pub truncated: bool,
    /// File that it comes from.
    pub path: String,
    /// Line of the file, from 1.
    pub line: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    task: u64,
    completion: String,
    #[serde(default)]
    truncated: bool,
}

/// Reads completions from JSON lines: objects with `task`, `completion` and, if it was cut off, `"truncated": true`.
pub fn read_completions(path: &Path) -> Result<Vec<GivenCompletion>, RewardTestError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| RewardTestError::Unreadable { path: name.clone(), reason: error.to_string() })?;
    let mut completions = Vec::new();
    for (line, content) in (1..).zip(text.lines()).filter(|(_, content)| !content.trim().is_empty()) {
        let read: Line = serde_json::from_str(content).map_err(|error| RewardTestError::Line {
            path: name.clone(),
            line,
            reason: error.to_string(),
        })?;
        let Line { task, completion, truncated } = read;
        completions.push(GivenCompletion { task, completion, truncated, path: name.clone(), line });
    }
    if completions.is_empty() {
        return Err(RewardTestError::Unreadable { path: name, reason: "it holds no completions".to_owned() });
    }
    Ok(completions)
}
