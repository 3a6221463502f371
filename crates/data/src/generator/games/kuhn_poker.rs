use super::{Deal, Dealt, game_tasks};
use crate::generator::RandomDraws;

game_tasks! {
    /// Kuhn poker: the prompt `Q:` has the policy's card, J, Q or K. The opponent gets one of the others in each episode.
    KuhnPokerSettings {}
}

impl Deal for KuhnPokerSettings {
    const ALPHABET: &'static str = ":JKQbp";

    fn deal(&self, draws: &mut RandomDraws) -> Option<Dealt> {
        let card = ["J", "Q", "K"][draws.index(3)];
        Some(Dealt::new(format!("{card}:"), card.to_owned()))
    }
}
