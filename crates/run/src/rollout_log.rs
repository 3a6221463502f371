//! `rollouts/STAGE-step-N.jsonl.zst`: every trajectory of the groups that a step was trained on, one per line.

use std::io::Write;
use std::path::Path;

use rloom_core::{Group, Rewards, Role, Trajectory};
use serde::Serialize;

use crate::RunError;

#[derive(Debug, Serialize)]
struct Line<'a> {
    task: u64,
    prompt: &'a str,
    completion: &'a str,
    answer: &'a str,
    /// Greedy episodes that others are compared with are not trained on.
    role: Role,
    rewards: &'a Rewards,
    advantage: Option<f64>,
    #[serde(flatten)]
    trajectory: &'a Trajectory,
}

/// Writes the groups of one step. `text` gives prompt and completion of a trajectory as text.
pub(crate) fn write(
    path: &Path,
    groups: &[Group],
    advantages: &[Vec<f64>],
    text: &dyn Fn(&Trajectory) -> (String, String),
) -> Result<(), RunError> {
    let io = |source| RunError::io("write", path, source);
    let file = std::fs::File::create(path).map_err(io)?;
    let mut out = zstd::Encoder::new(file, 3).map_err(io)?;
    for (g, group) in groups.iter().enumerate() {
        for (e, episode) in group.episodes.iter().enumerate() {
            for trajectory in &episode.segments {
                let (prompt, completion) = text(trajectory);
                let line = Line {
                    task: group.task.index,
                    prompt: &prompt,
                    completion: &completion,
                    answer: &group.task.answer,
                    role: episode.role,
                    rewards: &episode.rewards,
                    advantage: advantages.get(g).and_then(|a| a.get(e)).copied(),
                    trajectory,
                };
                serde_json::to_writer(&mut out, &line).map_err(|e| io(std::io::Error::other(e)))?;
                out.write_all(b"\n").map_err(io)?;
            }
        }
    }
    out.finish().map_err(io)?;
    Ok(())
}
