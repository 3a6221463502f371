use super::{Deal, Dealt, game_tasks};
use crate::generator::RandomDraws;

game_tasks! {
    /// Blackjack: the prompt `A6=s17 vT:` has the policy's cards, their total (`s`: an ace counts as 11) and the dealer's card.
    BlackjackSettings {}
}

/// Names of the cards by value, an ace being 1.
const CARDS: &[u8; 10] = b"A23456789T";

impl Deal for BlackjackSettings {
    const ALPHABET: &'static str = " 0123456789:=AThsv";

    fn deal(&self, draws: &mut RandomDraws) -> Option<Dealt> {
        let mut card = || draws.index(13).min(9);
        let (first, second, dealer) = (card(), card(), card());
        let hard = first + second + 2;
        let is_soft = first.min(second) == 0;
        let total = if is_soft { format!("s{}", hard + 10) } else { hard.to_string() };
        let [first, second, dealer] = [first, second, dealer].map(|card| char::from(CARDS[card]));
        Some(Dealt::new(format!("{first}{second}={total} v{dealer}:"), format!("{first}{second} {dealer}")))
    }
}
