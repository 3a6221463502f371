use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, StaleWeight, TokenTerm, each, ratio};
use crate::RatioTo;
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// CISPO (arXiv 2506.13585), per token: ℓ = −w·A·lp with the weight w = sg(clip(ρ, floor, cap)), ρ = exp(lp − old).
    /// Every token keeps its gradient; only its weight is bounded.
    Cispo {
        /// Upper bound of the weight.
        weight_cap: f64 = 5.0,
        /// Lower bound of the weight, at most the cap; 0 for none.
        weight_floor: f64 = 0.0,
    }
}

impl Kernel for Cispo {
    fn check(&self) -> Result<(), OutOfRange> {
        let (cap, floor) = (self.weight_cap, self.weight_floor);
        check("weight_cap", cap, cap > 0.0, "above 0", "5.0 is usual")?;
        let fits = floor >= 0.0 && floor <= cap;
        check("weight_floor", floor, fits, "from 0 to weight_cap", "0 for no floor")
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn bounds(&self) -> Bounds {
        Bounds::BOTH
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn idle_on_policy(&self) -> &'static [&'static str] {
        match (self.weight_cap >= 1.0, self.weight_floor <= 1.0) {
            (true, true) => &["weight_cap", "weight_floor"],
            (true, false) => &["weight_cap"],
            (false, _) => &["weight_floor"],
        }
    }

    /// The ratio is only a capped weight, held constant; relative to the sampler it is the importance weight.
    fn stale_ratio_to(&self) -> RatioTo {
        RatioTo::Behavior
    }

    fn stale_weight(&self) -> Option<StaleWeight> {
        Some(StaleWeight::TOKEN)
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            let (ratio, _) = ratio(row.log_ratio(t));
            let (weight, clipped) = if ratio > self.weight_cap {
                (self.weight_cap, Clipped::High)
            } else if ratio < self.weight_floor {
                (self.weight_floor, Clipped::Low)
            } else {
                (ratio, Clipped::No)
            };
            let wa = weight * row.advantage[t];
            TokenTerm { value: -wa * row.lp[t], d_logprob: -wa, clipped }
        });
    }
}
