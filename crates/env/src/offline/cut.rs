//! Rows with more tokens than fit.

use rloom_core::{Author, StopReason, Trajectory};
use rloom_data::TooLong;

/// Cuts the episodes of a row to `limit` tokens. Episodes with several segments are not cut.
///
/// # Errors
///
/// The number of tokens of a row that does not fit.
pub(super) fn cut(episodes: &mut [Vec<Trajectory>], limit: usize, rule: TooLong) -> Result<(), usize> {
    let longest = episodes.iter().flatten().map(|segment| segment.tokens.len()).max().unwrap_or(0);
    if longest <= limit {
        return Ok(());
    }
    if !rule.cuts() || episodes.iter().any(|segments| segments.len() != 1) {
        return Err(longest);
    }
    let removable = |segment: &Trajectory| removable(segment).min(segment.tokens.len().saturating_sub(1));
    let removed = match rule {
        // Both completions of a preference keep the same prompt.
        TooLong::KeepEnd => episodes.iter().flatten().map(removable).min().unwrap_or(0).min(longest - limit),
        _ => 0,
    };
    for segment in episodes.iter_mut().flatten() {
        cut_start(segment, removed);
        if segment.tokens.len() > limit {
            cut_end(segment, limit);
        }
    }
    Ok(())
}

/// Most tokens that can be removed from the beginning: those before the last turn, or before the first step, but for one.
fn removable(segment: &Trajectory) -> usize {
    let has_steps = segment.steps().next().is_some();
    let mut learned = segment.policy_ranges();
    let start = if has_steps { learned.next() } else { learned.last() };
    start.map_or(segment.tokens.len(), |range| range.start).saturating_sub(1)
}

fn cut_start(segment: &mut Trajectory, removed: usize) {
    segment.tokens.drain(..removed);
    segment.spans.retain_mut(|span| {
        span.range = span.range.start.saturating_sub(removed)..span.range.end.saturating_sub(removed);
        !span.range.is_empty()
    });
    // The first token has no prefix to be predicted from.
    if let Some(first) = segment.spans.first_mut()
        && first.author == Author::Policy
    {
        let mut given = first.clone();
        given.author = Author::Prompt;
        given.range.end = given.range.start + 1;
        first.range.start += 1;
        segment.spans.insert(0, given);
        segment.spans.retain(|span| !span.range.is_empty());
    }
    segment.logprobs = vec![0.0; segment.policy_tokens()];
}

/// Keeps the first `limit` tokens. A step that is cut has no end to carry its label, so that it is removed.
fn cut_end(segment: &mut Trajectory, mut limit: usize) {
    if let Some(step) = segment.spans.iter().find(|span| span.step.is_some() && span.range.end > limit) {
        limit = limit.min(step.range.start);
    }
    segment.tokens.truncate(limit);
    segment.spans.retain_mut(|span| {
        span.range.end = span.range.end.min(limit);
        span.range.start < span.range.end
    });
    segment.logprobs = vec![0.0; segment.policy_tokens()];
    segment.stop = StopReason::Length;
}
