use std::future::ready;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{EarlierReasoning, History, RandomKey, SettingError, Task, ValueRange};
use rloom_function::Host;
use rloom_text::{TextError, Tokenizer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dialogue::{Dialogue, after_reasoning};
use crate::keys::keys;
use crate::settings::Kind;
use crate::{
    BoxFuture, EnvError, Environment, EnvironmentUnusable, Interaction, Next, Response, Start, Turn,
    render_prompt,
};

/// Observation: the secret is smaller than the guess.
const SMALLER: &str = "<";
/// Observation: the secret is larger than the guess.
const LARGER: &str = ">";
/// Observation: the guess is not a number.
const NOT_A_NUMBER: &str = "?";

/// A number-guessing game with the hints "smaller" and "larger".
///
/// The task's answer contains range and secret: `0 <= 17 <= 31`; its prompt should contain the range. In each turn the
/// policy writes one number in decimal digits. The environment responds with `<` if the secret is smaller, `>` if it is
/// larger, and `?` if the turn is not a number; a hit or the last turn ends the game. The state key is the range of the
/// remaining candidates: `12-19`.
///
/// The step reward is 1 for a hit, 0 for another remaining candidate, and −1/(2·`max_turns`) for everything else: an
/// excluded number, a text that is not a number, a truncated turn. The penalties of a game sum to at most half of a hit,
/// so a game with a hit is always worth more than one without. The secret does not occur in the tokens, and a turn with
/// several numbers is not a number, so only a hit is rewarded.
///
/// Binary search finds any of 2ⁿ − 1 numbers in n turns; uniform guesses among m candidates take 2(1 + 1/m)·Hₘ − 3 turns
/// on average (Hₘ = 1 + 1/2 + … + 1/m): 5.3 for 31.
#[derive(Debug, Clone, Copy)]
pub struct Guess {
    max_turns: u32,
    earlier_reasoning: EarlierReasoning,
}

/// Settings of the number-guessing game.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GuessSettings {
    /// Maximum number of turns of a game, from 1 to 1000.
    pub max_turns: u32,
    /// What the policy sees of earlier turns: `"full"`, all of them, or a table with `window` or `summary`. Default: `"full"`.
    #[serde(skip_serializing_if = "History::is_full")]
    pub history: History,
    /// What becomes of the reasoning of earlier turns that the chat template drops. Default: `"keep"`.
    #[serde(skip_serializing_if = "EarlierReasoning::is_kept")]
    pub earlier_reasoning: EarlierReasoning,
}

impl Default for GuessSettings {
    fn default() -> Self {
        Self { max_turns: 5, history: History::Full, earlier_reasoning: EarlierReasoning::Keep }
    }
}

keys!(GuessSettings { max_turns: u32, history: History, earlier_reasoning: EarlierReasoning });

impl Kind for GuessSettings {
    fn validate(&self) -> Result<(), SettingError> {
        ValueRange::between(1.0, 1000.0).check("max_turns", self.max_turns.into())
    }

    fn max_turns(&self) -> usize {
        self.max_turns as usize
    }

    fn history(&self) -> Option<&History> {
        Some(&self.history)
    }

    fn earlier_reasoning(&self) -> EarlierReasoning {
        self.earlier_reasoning
    }

    fn alphabet(&self) -> String {
        "<>?".to_owned()
    }

    fn environment(
        &self,
        _: Duration,
        _: Option<Arc<dyn Host>>,
    ) -> Result<Arc<dyn Environment>, EnvironmentUnusable> {
        Ok(Arc::new(Guess::new(self)))
    }
}

/// An answer without range and secret.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[error("the answer {answer:?} does not contain range and secret")]
#[diagnostic(help("write it as `0 <= 17 <= 31`, like the `guess` generator"))]
struct InvalidAnswer {
    answer: String,
}

impl Guess {
    /// A game with these settings, whose history is full.
    pub fn new(settings: &GuessSettings) -> Self {
        Self { max_turns: settings.max_turns, earlier_reasoning: settings.earlier_reasoning }
    }

    fn start_game(self, task: &Task, tokenizer: &Tokenizer) -> Result<Start, EnvError> {
        let (candidates, secret) = read_answer(&task.answer).ok_or_else(|| EnvError::Failed {
            name: self.name().to_owned(),
            task: task.index,
            source: Box::new(InvalidAnswer { answer: task.answer.clone() }),
        })?;
        let prompt = render_prompt(tokenizer, &task.prompt)
            .map_err(|source| EnvError::Text { task: task.index, source })?;
        let state = Some(key(&candidates));
        let dialogue = Dialogue::new(&task.prompt, tokenizer, self.earlier_reasoning);
        let game = Game {
            task: task.index,
            dialogue,
            candidates,
            secret,
            turns_left: self.max_turns,
            penalty: 0.5 / f64::from(self.max_turns),
        };
        Ok(Start { attachments: Vec::new(), prompt, state, interaction: Box::new(game) })
    }
}

impl Environment for Guess {
    fn name(&self) -> &'static str {
        "guess"
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        _: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        Box::pin(ready(self.start_game(task, tokenizer)))
    }
}

#[derive(Debug)]
struct Game {
    task: u64,
    dialogue: Dialogue,
    /// Remaining candidates; never empty, since the secret is one of them.
    candidates: RangeInclusive<u64>,
    secret: u64,
    turns_left: u32,
    penalty: f64,
}

impl Interaction for Game {
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Response, EnvError>> {
        let task = self.task;
        let response = self.play(turn).map_err(|source| EnvError::Text { task, source });
        Box::pin(ready(response))
    }
}

impl Game {
    fn play(&mut self, turn: &Turn) -> Result<Response, TextError> {
        let written = self.dialogue.read(turn)?;
        // A truncated number may be a prefix of another one.
        let guess = if turn.stop.is_truncated() { None } else { read_number(after_reasoning(&written)) };
        self.turns_left = self.turns_left.saturating_sub(1);
        if guess == Some(self.secret) {
            return Ok(Response { next: Next::Done, reward: Some(1.0) });
        }
        let possible = guess.is_some_and(|guess| self.candidates.contains(&guess));
        let reward = Some(if possible { 0.0 } else { -self.penalty });
        if self.turns_left == 0 {
            return Ok(Response { next: Next::Done, reward });
        }
        let hint = match guess {
            None => NOT_A_NUMBER,
            Some(guess) if self.secret < guess => SMALLER,
            Some(_) => LARGER,
        };
        if let Some(guess) = guess.filter(|_| possible) {
            let (low, high) = (*self.candidates.start(), *self.candidates.end());
            self.candidates = if self.secret < guess { low..=guess - 1 } else { guess + 1..=high };
        }
        let next = self.dialogue.observe(turn, &written, hint, Some(key(&self.candidates)))?;
        Ok(Response { next, reward })
    }
}

/// The state key of a range of candidates.
fn key(candidates: &RangeInclusive<u64>) -> String {
    format!("{}-{}", candidates.start(), candidates.end())
}

/// Parses decimal digits, surrounded by white space only.
fn read_number(text: &str) -> Option<u64> {
    let digits = text.trim();
    if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
}

/// Parses range and secret: `0 <= 17 <= 31`.
fn read_answer(answer: &str) -> Option<(RangeInclusive<u64>, u64)> {
    let mut numbers = answer.split("<=").map(read_number);
    let (low, secret, high) = (numbers.next()??, numbers.next()??, numbers.next()??);
    (numbers.next().is_none() && (low..=high).contains(&secret)).then_some((low..=high, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_consist_of_digits() {
        for (text, number) in [("7", Some(7)), (" 07\n", Some(7)), ("0", Some(0))] {
            assert_eq!(read_number(text), number, "{text:?}");
        }
        for text in ["", " ", "+7", "-7", "7 8", "7.0", "7>", "0x7", "seven", "٧", "99999999999999999999"] {
            assert_eq!(read_number(text), None, "{text:?}");
        }
    }

    #[test]
    fn answers_contain_range_and_secret() {
        assert_eq!(read_answer("0 <= 17 <= 31"), Some((0..=31, 17)));
        assert_eq!(read_answer("5<=5<=5"), Some((5..=5, 5)));
        for wrong in ["17", "0 <= 17", "0 <= 32 <= 31", "3 <= 2 <= 9", "0 <= 1 <= 2 <= 3", "a <= 1 <= 2", ""]
        {
            assert_eq!(read_answer(wrong), None, "{wrong:?}");
        }
    }
}
