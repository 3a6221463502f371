use rloom_core::{SettingError, ValueRange};

use super::{Deal, Dealt, game_tasks};
use crate::generator::RandomDraws;

game_tasks! {
    /// Bandits: the prompt `abc:` has the names of the arms. The probability of each is uniform between 0 and 1.
    BanditSettings {
        /// Number of arms, from 2 to 26.
        arms: u32 = 3,
    }
}

impl Deal for BanditSettings {
    const ALPHABET: &'static str = ":abcdefghijklmnopqrstuvwxyz";

    fn check(&self) -> Result<(), SettingError> {
        ValueRange::between(2.0, 26.0).check("arms", self.arms.into())
    }

    fn deal(&self, draws: &mut RandomDraws) -> Option<Dealt> {
        let names = 'a'..='z';
        let prompt: String = names.take(self.arms as usize).chain([':']).collect();
        let arms: Vec<String> =
            (0..self.arms).map(|_| format!("{:.2}", draws.between(0, 100) as f64 / 100.0)).collect();
        Some(Dealt::new(prompt, arms.join(" ")))
    }
}
