//! Lists and deletes checkpoints.

use hyper::StatusCode;
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::{Answer, TrainApi};
use crate::checkpoints::{CheckpointPath, Kind, Stored};
use crate::problem::{Failed, Problem};
use crate::time::utc;

/// Checkpoints of one answer, if the client gives no number.
const PAGE: usize = 100;

impl TrainApi {
    /// All checkpoints, the newest first: those of the part that the query asks for.
    pub(super) fn checkpoints(&self, query: &str) -> Result<Value, Problem> {
        let (limit, offset) = (number(query, "limit", PAGE)?, number(query, "offset", 0)?);
        let all = self.shared.checkpoints.list(None).map_err(failed)?;
        let page: Vec<Value> = all.iter().skip(offset).take(limit).map(describe).collect();
        let cursor = json!({"offset": offset, "limit": limit, "total_count": all.len()});
        Ok(json!({"checkpoints": page, "cursor": cursor}))
    }

    /// All checkpoints of a training run, the newest first.
    pub(super) fn checkpoints_of(&self, run: &str) -> Result<Value, Problem> {
        let all = self.shared.checkpoints.list(Some(run)).map_err(failed)?;
        Ok(json!({"checkpoints": all.iter().map(describe).collect::<Vec<_>>()}))
    }

    /// Deletes `weights/NAME` or `sampler_weights/NAME` of a training run. Models and samplers that have loaded it keep it.
    pub(super) fn delete_checkpoint(&self, run: &str, name: &str) -> Result<Answer, Problem> {
        let path = CheckpointPath::parse(&format!("tinker://{run}/{name}"));
        let path = path.map_err(|failed| Problem::invalid(failed.message))?;
        if !self.shared.checkpoints.delete(&path).map_err(failed)? {
            return Err(Problem::not_found(format!("{} does not exist", path.text())));
        }
        Ok(Answer::of(StatusCode::NO_CONTENT, Bytes::new()))
    }
}

fn failed(failed: Failed) -> Problem {
    if failed.is_of_user { Problem::invalid(failed.message) } else { Problem::failed(failed.message) }
}

fn describe(stored: &Stored) -> Value {
    let kind = match stored.path.kind {
        Kind::Training => "training",
        Kind::Sampler => "sampler",
    };
    json!({
        "checkpoint_id": stored.path.id(),
        "checkpoint_type": kind,
        "time": utc(stored.time),
        "tinker_path": stored.path.text(),
        "size_bytes": stored.bytes,
        "public": false,
    })
}

/// A number of the query.
fn number(query: &str, key: &str, default: usize) -> Result<usize, Problem> {
    let value = query.split('&').find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
    let Some(value) = value else { return Ok(default) };
    value.parse().map_err(|_| Problem::invalid(format!("`{key}` is not a number of checkpoints")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_the_query() {
        let of = |query: &str| number(query, "limit", 7).map_err(|problem| problem.message);
        assert_eq!(of(""), Ok(7));
        assert_eq!(of("offset=3&limit=2"), Ok(2));
        assert_eq!(of("limits=3"), Ok(7));
        assert!(of("limit=-1").is_err() && of("limit=").is_err());
    }
}
