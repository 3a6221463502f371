use rloom_core::{SettingError, ValueRange};

use super::{Deal, Dealt, game_tasks};
use crate::generator::RandomDraws;

game_tasks! {
    /// Wordle: the prompt `word:` asks for a secret word of five letters. A demonstration guesses different words at random. All
    /// splits have the same words: a policy would learn to avoid a word that is never the secret.
    WordleSettings {
        /// Number of words, the first ones of a list of 192; at least 2.
        words: u32 = 64,
    }
}

/// Turns of a demonstration.
const TURNS: usize = 6;

impl Deal for WordleSettings {
    const ALPHABET: &'static str = ":abcdefghijklmnopqrstuvwxyz";

    fn check(&self) -> Result<(), SettingError> {
        ValueRange::between(2.0, words().count() as f64).check("words", self.words.into())
    }

    fn deal(&self, draws: &mut RandomDraws) -> Option<Dealt> {
        let mut words: Vec<&str> = words().take(self.words as usize).collect();
        let secret = words[draws.index(words.len())];
        let mut turns: Vec<String> = Vec::new();
        while turns.len() < TURNS && !words.is_empty() && turns.last().is_none_or(|last| last != secret) {
            turns.push(words.swap_remove(draws.index(words.len())).to_owned());
        }
        Some(Dealt { turns, ..Dealt::new("word:".to_owned(), secret.to_owned()) })
    }
}

fn words() -> impl Iterator<Item = &'static str> {
    WORDS.split_whitespace()
}

/// Common English words of five letters, in no order.
const WORDS: &str = "
    crane house plant light stone water music green table chair bread river cloud dream smile heart
    night world earth beach grape lemon tiger horse sheep mouse snake eagle brave clean quick sweet
    sharp round solid fresh early quiet proud happy angry tired young white black brown coast field
    grass swamp trail storm sunny frost blaze flame ocean shore metal glass paper brick cable crown
    brush knife spoon plate apple berry olive onion peach sugar honey toast pasta salad steak juice
    shirt pants glove scarf dress cloth train truck plane canal wheel motor pedal coach ferry actor
    judge nurse pilot guard baker uncle niece child adult queen knave woman buyer maker owner north
    south month later today break build carry catch chase climb count dance drink drive enjoy fetch
    float guess laugh learn march offer paint press reach shake sleep speak spell stand start sweep
    teach think throw touch trade treat visit waste watch write block board chest clock crowd dozen
    event fault forty front fruit giant group habit image index joint label layer level limit local
    magic major match meter model money mount mouth nerve novel nylon order organ panel party phase";
