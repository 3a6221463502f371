//! Rollout logs, `rollouts/STAGE-step-N.jsonl.zst`: the trajectories that a step trained, one per line.
//!
//! The file ends in a skippable frame of the Zstandard format (RFC 8878, section 3.1.2), which decompressors ignore. It
//! lists the tickets that are new in the step, so that a search for a ticket need not decompress every file:
//!
//! ```text
//! magic 0x184D2A5D (4 bytes, little-endian) · length n + 4 (4) · JSON array of tickets (n) · n (4)
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rloom_core::{Episode, Group, PolicyVersion, PromptSource, Rewards, Role, Task, Trajectory};
use serde::{Deserialize, Serialize};

use crate::TelemetryError;

/// Magic number of the skippable frame: one of the sixteen available to applications.
const INDEX_MAGIC: u32 = 0x184D_2A5D;

/// A trajectory with its rewards and advantage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoggedTrajectory {
    /// The step that trained it, from 1.
    pub step: u64,
    /// The version before the step. Token ages are relative to it.
    pub version: PolicyVersion,
    /// Index of the task in its dataset.
    pub task: u64,
    /// The prompt as text.
    pub prompt: String,
    /// Everything after the prompt as text, including the environment's replies.
    pub completion: String,
    /// The reference answer.
    pub answer: String,
    /// Role of the episode. Greedy baselines are not trained.
    pub role: Role,
    /// Rewards of the episode.
    pub rewards: Rewards,
    /// Advantage of the episode.
    pub advantage: Option<f64>,
    /// Advantages from a Python function: one for all tokens of the episode or one per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_advantages: Option<Vec<f64>>,
    /// True if an earlier step has trained on it, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reused: bool,
    /// The trajectory.
    #[serde(flatten)]
    pub trajectory: Trajectory,
}

/// Advantages of the groups of a step, `[group][episode]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoggedAdvantages<'a> {
    /// Advantage of each episode.
    pub shown: &'a [Vec<f64>],
    /// Advantages that a Python function has computed; empty without one.
    pub given: &'a [Vec<Vec<f64>>],
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
    #[serde(skip_serializing_if = "Option::is_none")]
    given_advantages: Option<&'a [f64]>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reused: bool,
    #[serde(flatten)]
    trajectory: &'a Trajectory,
}

/// Writes the groups that `step` trained, of which the first `new` are new and the others reused. The file appears atomically. `text` returns prompt and completion of a
/// trajectory as text.
pub fn write(
    path: &Path,
    step: u64,
    groups: &[Group],
    new: usize,
    advantages: LoggedAdvantages<'_>,
    text: &dyn Fn(&Trajectory) -> (String, String),
) -> Result<(), TelemetryError> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = write_file(&partial, step, groups, new, advantages, text).and_then(|()| {
        std::fs::rename(&partial, path).map_err(|source| TelemetryError::io("rename", &partial, source))
    });
    if written.is_err() {
        // Best effort: the first error is the one to report, and a full disk needs the space.
        let _ = std::fs::remove_file(&partial);
    }
    written
}

fn write_file(
    path: &Path,
    step: u64,
    groups: &[Group],
    new: usize,
    advantages: LoggedAdvantages<'_>,
    text: &dyn Fn(&Trajectory) -> (String, String),
) -> Result<(), TelemetryError> {
    let io = |source| TelemetryError::io("write", path, source);
    let mut out = zstd::Encoder::new(File::create(path).map_err(io)?, 3).map_err(io)?;
    let mut buffer = Vec::new();
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
                    advantage: advantages.shown.get(g).and_then(|a| a.get(e)).copied(),
                    given_advantages: advantages.given.get(g).and_then(|a| a.get(e)).map(Vec::as_slice),
                    reused: g >= new,
                    trajectory,
                };
                // A line at a time: each write to the encoder costs as much as some hundred bytes.
                buffer.clear();
                serde_json::to_writer(&mut buffer, &line).map_err(|e| io(std::io::Error::other(e)))?;
                buffer.push(b'\n');
                out.write_all(&buffer).map_err(io)?;
            }
        }
    }
    let mut file = out.finish().map_err(io)?;
    let tickets: Vec<u64> = groups.iter().take(new).map(|group| group.ticket.0).collect();
    file.write_all(&index_frame(&tickets)).map_err(io)
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

/// Returns the tickets that are new in the step of a file, in the order of its groups. Reads the whole file if it has no index.
pub fn tickets(path: &Path) -> Result<Vec<u64>, TelemetryError> {
    let mut file = File::open(path).map_err(|source| TelemetryError::io("open", path, source))?;
    if let Some(tickets) = read_index(&mut file) {
        return Ok(tickets);
    }
    let mut tickets = Vec::new();
    for line in lines(path)? {
        let line = line?;
        let ticket = line.trajectory.key.ticket.0;
        if !line.reused && tickets.last() != Some(&ticket) {
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
    let frame = i64::from(length) + 12;
    let is_index = word(file, frame)? == INDEX_MAGIC && word(file, frame - 4)? == length.checked_add(4)?;
    if !is_index {
        return None;
    }
    let mut json = vec![0; length as usize];
    file.read_exact(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

/// Returns the trajectories of a group in order; empty if the file does not contain the group.
pub fn group(path: &Path, ticket: u64) -> Result<Vec<LoggedTrajectory>, TelemetryError> {
    let is_wanted = |line: &Result<LoggedTrajectory, TelemetryError>| {
        line.as_ref().map_or(true, |line| line.trajectory.key.ticket.0 == ticket)
    };
    lines(path)?.filter(is_wanted).collect()
}

fn lines(
    path: &Path,
) -> Result<impl Iterator<Item = Result<LoggedTrajectory, TelemetryError>>, TelemetryError> {
    let file = path.to_owned();
    Ok(json_lines(path)?.enumerate().map(move |(number, line)| {
        parse(&line?, number + 1).map_err(|source| TelemetryError::io("read", &file, source))
    }))
}

/// Returns the lines of a file as JSON text, one trajectory each.
pub fn json_lines(
    path: &Path,
) -> Result<impl Iterator<Item = Result<String, TelemetryError>>, TelemetryError> {
    let file = File::open(path).map_err(|source| TelemetryError::io("open", path, source))?;
    let decoder = zstd::Decoder::new(file).map_err(|source| TelemetryError::io("read", path, source))?;
    let path = path.to_owned();
    let failed = move |source| TelemetryError::io("read", &path, source);
    Ok(BufReader::new(decoder).lines().map(move |line| line.map_err(&failed)))
}

fn parse(line: &str, number: usize) -> std::io::Result<LoggedTrajectory> {
    let invalid = |error: serde_json::Error| {
        std::io::Error::new(std::io::ErrorKind::InvalidData, format!("line {number}: {error}"))
    };
    let logged: LoggedTrajectory = serde_json::from_str(line).map_err(invalid)?;
    // Parsed separately: serde parses numbers of flattened structures as f64.
    let trajectory = serde_json::from_str(line).map_err(invalid)?;
    Ok(LoggedTrajectory { trajectory, ..logged })
}

/// Returns the groups of a step, in training order: the new ones, then the reused ones. Their tasks contain only the fields that the log has.
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
                extra: std::sync::Arc::default(),
            };
            groups.push(Group { ticket, task, episodes: Vec::new() });
        }
        if let Some(group) = groups.last_mut() {
            add_segment(&mut group.episodes, line);
        }
    }
    Ok(groups)
}

/// Returns the advantages of a step that a Python function has computed, `[group][episode]`; `None` if it has computed none.
pub fn given_advantages(path: &Path) -> Result<Option<Vec<Vec<Vec<f64>>>>, TelemetryError> {
    let mut groups: Vec<Vec<Vec<f64>>> = Vec::new();
    let (mut last, mut is_given) = (None, false);
    for line in lines(path)? {
        let LoggedTrajectory { given_advantages, trajectory, .. } = line?;
        let (ticket, sample) = (trajectory.key.ticket, trajectory.key.sample);
        if last.is_none_or(|(known, _)| known != ticket) {
            groups.push(Vec::new());
        }
        // Every segment of an episode has those of the whole episode.
        if last != Some((ticket, sample)) {
            is_given |= given_advantages.is_some();
            groups
                .last_mut()
                .into_iter()
                .for_each(|group| group.push(given_advantages.clone().unwrap_or_default()));
        }
        last = Some((ticket, sample));
    }
    Ok(is_given.then_some(groups))
}

/// Assembles the trajectories of a group into episodes.
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
    use crate::synthetic::group as synthetic_group;

    #[test]
    fn a_log_reads_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rl-step-000004.jsonl.zst");
        let groups = [synthetic_group(9, 2, 3), synthetic_group(11, 2, 2)];
        let text = |t: &Trajectory| ("p".to_owned(), format!("{} tokens", t.tokens.len()));
        let shown = [vec![1.0, -1.0], vec![0.5, -0.5]];
        let given = [vec![vec![1.0], vec![-1.0], vec![0.0]], vec![vec![0.1, 0.7], Vec::new()]];
        write(&path, 4, &groups, 2, LoggedAdvantages { shown: &shown, given: &given }, &text).unwrap();
        assert_eq!(given_advantages(&path).unwrap().unwrap(), given);
        let without = LoggedAdvantages { shown: &shown, given: &[] };
        write(&path, 4, &groups, 2, without, &text).unwrap();
        assert_eq!(given_advantages(&path).unwrap(), None);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
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
    fn segments_are_read_back_into_their_episodes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rl-step-000004.jsonl.zst");
        let mut groups = [synthetic_group(9, 2, 3), synthetic_group(11, 2, 2)];
        for (group, episode, segments) in [(0, 1, 3), (1, 0, 2)] {
            let own = &mut groups[group].episodes[episode].segments;
            for segment in 1..segments {
                let mut further = own[0].clone();
                further.key.segment = segment;
                own.push(further);
            }
        }
        let text = |_: &Trajectory| (String::new(), String::new());
        let given = [vec![vec![1.0], vec![0.25; 18], vec![0.0]], vec![vec![0.1; 12], vec![0.5]]];
        write(&path, 4, &groups, 2, LoggedAdvantages { shown: &[], given: &given }, &text).unwrap();
        let again = super::read(&path).unwrap();
        assert!(again.iter().zip(&groups).all(|(a, b)| (a.ticket, &a.episodes) == (b.ticket, &b.episodes)));
        // A line for each segment, and the advantages of an episode once.
        assert_eq!(group(&path, 9).unwrap().len(), 5);
        assert_eq!(given_advantages(&path).unwrap().unwrap(), given);
    }

    #[test]
    fn a_failed_write_leaves_no_temporary_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rl-step-000004.jsonl.zst");
        // A folder in the place of the file makes the rename fail.
        std::fs::create_dir(&path).unwrap();
        let text = |_: &Trajectory| (String::new(), String::new());
        let error =
            write(&path, 4, &[synthetic_group(9, 2, 3)], 1, LoggedAdvantages::default(), &text).unwrap_err();
        assert!(error.to_string().starts_with("could not rename"), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_index_is_optional_and_not_part_of_the_text() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rl-step-000001.jsonl.zst");
        let text = |_: &Trajectory| (String::new(), String::new());
        let groups = [synthetic_group(3, 0, 2), synthetic_group(5, 0, 2)];
        write(&path, 1, &groups, 2, LoggedAdvantages::default(), &text).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let plain = String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap();
        assert_eq!(plain.lines().count(), 4);
        std::fs::write(&path, &bytes[..bytes.len() - index_frame(&[3, 5]).len()]).unwrap();
        assert!(read_index(&mut File::open(&path).unwrap()).is_none());
        assert_eq!(tickets(&path).unwrap(), [3, 5]);
    }

    #[test]
    fn reused_groups_belong_to_the_step_that_they_are_new_in() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rl-step-000004.jsonl.zst");
        let groups = [synthetic_group(9, 2, 2), synthetic_group(3, 1, 2)];
        let text = |_: &Trajectory| (String::new(), String::new());
        write(&path, 4, &groups, 1, LoggedAdvantages::default(), &text).unwrap();
        assert_eq!(tickets(&path).unwrap(), [9]);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - index_frame(&[9]).len()]).unwrap();
        assert_eq!(tickets(&path).unwrap(), [9], "without the index");
        let again = super::read(&path).unwrap();
        assert_eq!(again.iter().map(|group| group.ticket.0).collect::<Vec<_>>(), [9, 3]);
        let reused =
            |ticket| group(&path, ticket).unwrap().iter().map(|line| line.reused).collect::<Vec<_>>();
        assert_eq!((reused(9), reused(3)), (vec![false; 2], vec![true; 2]));
    }
}
