//! The paths of a session that are no API of a model: its state, rewards and end.

use serde_json::{Value, json};

use super::route::Route;
use crate::fields::Fields;
use crate::problem::Problem;
use crate::session::{Session, SessionReward, SessionStatus};

/// Longest name in a reward, and longest message, in bytes.
const MAX_TEXT: usize = 1000;
/// Name of a reward that has none.
const DEFAULT_NAME: &str = "reward";

/// Answers a request.
pub(super) fn answer(session: &Session, route: &Route, body: &[u8]) -> Result<Value, Problem> {
    match route {
        Route::Reward => {
            session.reward(read_reward(body)?)?;
            Ok(json!({"status": "ok"}))
        }
        Route::Finish => Ok(described(session.finish(read_end(body)?)?)),
        _ => session.describe(),
    }
}

fn read_reward(body: &[u8]) -> Result<SessionReward, Problem> {
    let mut fields = Fields::of_request(body)?;
    let value = fields.require("value")?.as_f64().filter(|value| value.is_finite());
    let value = value.ok_or_else(|| fields.problem("value", "must be a finite number"))?;
    let name = limited(&mut fields, "name")?.unwrap_or_else(|| DEFAULT_NAME.to_owned());
    let call = limited(&mut fields, "call_id")?;
    let agent = limited(&mut fields, "agent")?;
    fields.finish()?;
    Ok(SessionReward { name, value, call, agent })
}

fn read_end(body: &[u8]) -> Result<SessionStatus, Problem> {
    let mut fields =
        if body.trim_ascii().is_empty() { Fields::of(json!({}), "")? } else { Fields::of_request(body)? };
    let status = fields.text("status")?;
    let message = limited(&mut fields, "message")?;
    let status = match status.as_deref() {
        None | Some("finished") => SessionStatus::Finished,
        Some("failed") => {
            let message = message.unwrap_or_else(|| "the agent reported a failure".to_owned());
            SessionStatus::Failed { message }
        }
        Some(_) => return Err(fields.problem("status", "must be \"finished\" or \"failed\"")),
    };
    fields.finish()?;
    Ok(status)
}

/// A text that is neither empty nor long.
fn limited(fields: &mut Fields, name: &str) -> Result<Option<String>, Problem> {
    let text = fields.text(name)?;
    if text.as_ref().is_some_and(|text| text.is_empty() || text.len() > MAX_TEXT) {
        return Err(fields.problem(name, format!("must have 1 to {MAX_TEXT} bytes")));
    }
    Ok(text)
}

fn described(status: SessionStatus) -> Value {
    match status {
        SessionStatus::Finished => json!({"status": "finished"}),
        SessionStatus::Failed { message } => json!({"status": "failed", "message": message}),
        SessionStatus::Expired { limit } => json!({"status": "expired", "message": limit.to_string()}),
    }
}
