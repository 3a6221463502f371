//! `rollouts/STAGE-step-N.jsonl.zst`: every trajectory of the groups that a step was trained on, one per line.
//!
//! The file ends in a skippable frame of the Zstandard format (RFC 8878, section 3.1.2), which decompressors pass
//! over. It names the tickets of the file, so that whoever looks for one need not decompress a thousand files:
//!
//! ```text
//! magic 0x184D2A5D (4 bytes, little-endian) · length n + 4 (4) · JSON array of tickets (n) · n (4)
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use rloom_core::{Episode, Group, PolicyVersion, PromptSource, Rewards, Role, Task, Trajectory};
use serde::{Deserialize, Serialize};

use crate::TelemetryError;

/// The skippable frame's magic number: one of sixteen that the format leaves to its users.
const INDEX_MAGIC: u32 = 0x184D_2A5D;

/// One trajectory with everything that its training used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoggedTrajectory {
    /// The step that trained on it, from 1.
    pub step: u64,
    /// The version that was trained from: what its tokens' ages count from.
    pub version: PolicyVersion,
    /// The task's place in its dataset.
    pub task: u64,
    /// The prompt as text.
    pub prompt: String,
    /// Everything after the prompt as text, what the environment answered included.
    pub completion: String,
    /// The reference answer.
    pub answer: String,
    /// Greedy episodes that others are compared with are not trained on.
    pub role: Role,
    /// What its episode earned.
    pub rewards: Rewards,
    /// Its episode's advantage.
    pub advantage: Option<f64>,
    /// The trajectory itself.
    #[serde(flatten)]
    pub trajectory: Trajectory,
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    step: u64,
    version: PolicyVersion,
    task: u64,
    prompt: &'a str,
    completion: &'a str,
    answer: &'a str,
    role: Role,
    rewards: &'a Rewards,
    advantage: Option<f64>,
    #[serde(flatten)]
    trajectory: &'a Trajectory,
}

/// Writes the groups that `step` trained on; the file appears whole or not at all. `text` gives prompt and completion
/// of a trajectory as text.
pub fn write(
    path: &Path,
    step: u64,
    groups: &[Group],
    advantages: &[Vec<f64>],
    text: &dyn Fn(&Trajectory) -> (String, String),
) -> Result<(), TelemetryError> {
    let beside = path.with_extension("part");
    let io = |source| TelemetryError::io("write", &beside, source);
    let mut out = zstd::Encoder::new(File::create(&beside).map_err(io)?, 3).map_err(io)?;
    for (g, group) in groups.iter().enumerate() {
        for (e, episode) in group.episodes.iter().enumerate() {
            for trajectory in &episode.segments {
                let (prompt, completion) = text(trajectory);
                let line = Line {
                    step,
                    version: PolicyVersion(step.saturating_sub(1)),
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
    let mut file = out.finish().map_err(io)?;
    let tickets: Vec<u64> = groups.iter().map(|group| group.ticket.0).collect();
    file.write_all(&index_frame(&tickets)).map_err(io)?;
    std::fs::rename(&beside, path).map_err(|source| TelemetryError::io("rename", &beside, source))
}

fn index_frame(tickets: &[u64]) -> Vec<u8> {
    let json = serde_json::json!(tickets).to_string();
    let length = json.len() as u32;
    let mut frame = Vec::with_capacity(json.len() + 12);
    frame.extend(INDEX_MAGIC.to_le_bytes());
    frame.extend((length + 4).to_le_bytes());
    frame.extend(json.as_bytes());
    frame.extend(length.to_le_bytes());
    frame
}

/// The tickets of a file, in the order of its groups. Of a file without an index, everything is read.
pub fn tickets(path: &Path) -> Result<Vec<u64>, TelemetryError> {
    let mut file = File::open(path).map_err(|source| TelemetryError::io("open", path, source))?;
    if let Some(tickets) = read_index(&mut file) {
        return Ok(tickets);
    }
    let mut tickets = Vec::new();
    for line in lines(path)? {
        let ticket = line?.trajectory.key.ticket.0;
        if tickets.last() != Some(&ticket) {
            tickets.push(ticket);
        }
    }
    Ok(tickets)
}

fn read_index(file: &mut File) -> Option<Vec<u64>> {
    let word = |file: &mut File, from_end: i64| {
        let mut bytes = [0; 4];
        file.seek(SeekFrom::End(-from_end)).ok()?;
        file.read_exact(&mut bytes).ok()?;
        Some(u32::from_le_bytes(bytes))
    };
    let length = word(file, 4)?;
    let whole = i64::from(length) + 12;
    let is_index = word(file, whole)? == INDEX_MAGIC && word(file, whole - 4)? == length.checked_add(4)?;
    if !is_index {
        return None;
    }
    let mut json = vec![0; length as usize];
    file.read_exact(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

/// The trajectories of one group, in order; empty where the file has none of it.
pub fn group(path: &Path, ticket: u64) -> Result<Vec<LoggedTrajectory>, TelemetryError> {
    let own = |line: &Result<LoggedTrajectory, TelemetryError>| {
        line.as_ref().map_or(true, |line| line.trajectory.key.ticket.0 == ticket)
    };
    lines(path)?.filter(own).collect()
}

fn lines(
    path: &Path,
) -> Result<impl Iterator<Item = Result<LoggedTrajectory, TelemetryError>>, TelemetryError> {
    let file = File::open(path).map_err(|source| TelemetryError::io("open", path, source))?;
    let decoder = zstd::Decoder::new(file).map_err(|source| TelemetryError::io("read", path, source))?;
    let path = path.to_owned();
    Ok(BufReader::new(decoder).lines().enumerate().map(move |(number, line)| {
        line.and_then(|line| parse(&line, number + 1))
            .map_err(|source| TelemetryError::io("read", &path, source))
    }))
}

fn parse(line: &str, number: usize) -> std::io::Result<LoggedTrajectory> {
    let invalid = |error: serde_json::Error| {
        std::io::Error::new(std::io::ErrorKind::InvalidData, format!("line {number}: {error}"))
    };
    let logged: LoggedTrajectory = serde_json::from_str(line).map_err(invalid)?;
    // Once more on its own: within a flattened structure its numbers go through f64.
    let trajectory = serde_json::from_str(line).map_err(invalid)?;
    Ok(LoggedTrajectory { trajectory, ..logged })
}

/// The groups of one step, in training order. Their tasks hold what the file has of them.
pub fn read(path: &Path) -> Result<Vec<Group>, TelemetryError> {
    let mut groups: Vec<Group> = Vec::new();
    for line in lines(path)? {
        let line = line?;
        let ticket = line.trajectory.key.ticket;
        if groups.last().is_none_or(|group| group.ticket != ticket) {
            let task = Task {
                index: line.task,
                prompt: PromptSource::Text(line.prompt.clone()),
                answer: line.answer.clone(),
                demonstration: None,
                domain: String::new(),
            };
            groups.push(Group { ticket, task, episodes: Vec::new() });
        }
        if let Some(group) = groups.last_mut() {
            add_segment(&mut group.episodes, line);
        }
    }
    Ok(groups)
}

/// The episodes of one group's trajectories.
pub fn episodes(group: Vec<LoggedTrajectory>) -> Vec<Episode> {
    let mut episodes = Vec::new();
    for line in group {
        add_segment(&mut episodes, line);
    }
    episodes
}

fn add_segment(episodes: &mut Vec<Episode>, line: LoggedTrajectory) {
    let LoggedTrajectory { role, rewards, trajectory, .. } = line;
    match episodes.last_mut() {
        Some(episode) if episode.segments.last().is_some_and(|t| t.key.sample == trajectory.key.sample) => {
            episode.segments.push(trajectory);
        }
        _ => episodes.push(Episode { role, segments: vec![trajectory], rewards }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::group as made;

    #[test]
    fn a_file_reads_back_as_it_was_trained_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rl-step-000004.jsonl.zst");
        let groups = [made(9, 2, 3), made(11, 2, 2)];
        let text = |t: &Trajectory| ("p".to_owned(), format!("{} tokens", t.tokens.len()));
        write(&path, 4, &groups, &[vec![1.0, -1.0], vec![0.5, -0.5]], &text).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside");
        assert_eq!(tickets(&path).unwrap(), [9, 11]);
        let found = group(&path, 11).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].trajectory, groups[1].episodes[1].segments[0]);
        assert_eq!((found[1].step, found[1].version, found[1].advantage), (4, PolicyVersion(3), Some(-0.5)));
        assert_eq!(found[1].rewards, groups[1].episodes[1].rewards);
        assert!(group(&path, 10).unwrap().is_empty());
        let again = super::read(&path).unwrap();
        assert!(again.iter().zip(&groups).all(|(a, b)| (a.ticket, &a.episodes) == (b.ticket, &b.episodes)));
    }

    #[test]
    fn the_index_is_no_part_of_the_text_and_can_be_missing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rl-step-000001.jsonl.zst");
        let text = |_: &Trajectory| (String::new(), String::new());
        write(&path, 1, &[made(3, 0, 2), made(5, 0, 2)], &[], &text).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let plain = String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap();
        assert_eq!(plain.lines().count(), 4);
        std::fs::write(&path, &bytes[..bytes.len() - index_frame(&[3, 5]).len()]).unwrap();
        assert!(read_index(&mut File::open(&path).unwrap()).is_none());
        assert_eq!(tickets(&path).unwrap(), [3, 5]);
    }
}
