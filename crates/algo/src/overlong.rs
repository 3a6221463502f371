/// DAPO's soft overlong punishment (arXiv 2503.14476, section 3.4), added to the reward before the advantage: 0 up to
/// L − buffer tokens, then falling linearly to −factor at the completion limit L.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overlong {
    /// Number of tokens over which the penalty grows; `None` for a fifth of the limit.
    pub buffer: Option<u64>,
    /// The full penalty, > 0.
    pub factor: f64,
}

impl Overlong {
    /// Penalty of a completion of `tokens` policy tokens under the limit `limit`: from 0 to
    /// −factor, never −0. A buffer longer than the limit is reduced to the limit.
    pub fn penalty(&self, tokens: u64, limit: u64) -> f64 {
        let buffer = self.buffer.unwrap_or(limit / 5).clamp(1, limit.max(1));
        let past = tokens.saturating_sub(limit.saturating_sub(buffer));
        if past == 0 { 0.0 } else { -self.factor * (past as f64 / buffer as f64).min(1.0) }
    }
}
