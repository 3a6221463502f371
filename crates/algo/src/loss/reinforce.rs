use super::kernel::{Clipped, Kernel, Reads, Row, Scope, StaleWeight, TokenTerm, each};
use crate::settings::keys::settings;
use crate::{Level, WeightAction, WeightLevel};

settings! {
    /// The plain policy gradient (Williams 1992), without a ratio: correct only for samples of the current policy.
    ///
    /// At token level ℓ = −A_t·lp_t, over the aggregation. At sequence level ℓ_i = −A_i·Σ_t lp_t, the completion as one
    /// action (arXiv 2402.14740), over the number of sequences.
    Reinforce {
        /// The unit that counts as one action.
        level: Level = Level::Token,
    }
}

impl Kernel for Reinforce {
    fn scope(&self) -> Scope {
        if self.is_per_sequence() { Scope::Sequence } else { Scope::Token }
    }

    fn is_per_sequence(&self) -> bool {
        self.level == Level::Sequence
    }

    fn reads(&self) -> Reads {
        Reads::ADVANTAGE
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    /// Without a ratio there is one optimiser step per batch, and the weight is exp(lp − beh) of one action. It is
    /// truncated, not masked: without a clip nothing else bounds a large one, and a mask would drop whole sequences.
    fn stale_weight(&self) -> Option<StaleWeight> {
        let level = match self.level {
            Level::Token => WeightLevel::Token,
            Level::Sequence => WeightLevel::Sequence,
        };
        Some(StaleWeight { level, action: WeightAction::Clamp })
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            let a = row.advantage[t];
            TokenTerm { value: -a * row.lp[t], d_logprob: -a, clipped: Clipped::No }
        });
    }
}
