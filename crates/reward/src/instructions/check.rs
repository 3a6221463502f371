//! The checks and their arguments, with the names of IFEval's training data.

use regex::Regex;
use serde_json::{Map, Value};
use whatlang::Lang;

use super::text;
use crate::language;
use crate::row::RowProblem;

/// A check of an answer.
#[derive(Debug)]
pub(super) enum Check {
    Keywords(Vec<String>),
    WordFrequency {
        word: String,
        count: usize,
    },
    ForbiddenWords(Vec<String>),
    LetterFrequency {
        letter: char,
        count: usize,
    },
    Language(Lang),
    /// Number of paragraphs between dividers `* * *`.
    Dividers(usize),
    Words(Quantity),
    Sentences(Quantity),
    /// Number of paragraphs between empty lines, and the first word of one of them.
    FirstWord {
        paragraphs: usize,
        index: usize,
        word: String,
    },
    Postscript(String),
    Placeholders(usize),
    Bullets(usize),
    Title,
    Choice(Vec<String>),
    Highlights(usize),
    /// Headers of sections, such as `Section 1`.
    Sections {
        header: Regex,
        count: usize,
    },
    Json,
    RepeatPrompt(String),
    TwoResponses,
    Uppercase,
    Lowercase,
    CapitalWords(Quantity),
    End(String),
    Quotation,
    NoCommas,
}

/// A number that a count is compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantity {
    number: usize,
    bound: Bound,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    AtLeast,
    Around,
    AtMost,
}

impl Quantity {
    /// `tolerance` is the largest difference from a number that is stated as "around".
    fn accepts(self, count: usize, tolerance: usize) -> bool {
        match self.bound {
            Bound::AtLeast => count >= self.number,
            Bound::Around => count.abs_diff(self.number) <= tolerance,
            Bound::AtMost => count <= self.number,
        }
    }

    /// A tenth of the number, rounded, at least 1.
    fn tenth(self) -> usize {
        ((self.number as f64 * 0.1).round_ties_even() as usize).max(1)
    }
}

type Read = fn(&Arguments<'_>) -> Result<Check, RowProblem>;

/// The checks by name.
const CHECKS: [(&str, Read); 25] = [
    ("verify_keywords", |a| Ok(Check::Keywords(a.texts("keyword_list")?))),
    ("verify_keyword_frequency", |a| {
        Ok(Check::WordFrequency { word: a.text("word")?.to_lowercase(), count: a.count("N")? })
    }),
    ("validate_forbidden_words", |a| Ok(Check::ForbiddenWords(a.texts("forbidden_words")?))),
    ("verify_letter_frequency", |a| {
        Ok(Check::LetterFrequency { letter: a.letter("letter")?, count: a.count("N")? })
    }),
    ("validate_response_language", |a| Ok(Check::Language(a.language("language")?))),
    ("verify_paragraph_count", |a| Ok(Check::Dividers(a.count("N")?))),
    ("validate_word_constraint", |a| Ok(Check::Words(a.quantity()?))),
    ("verify_sentence_constraint", |a| Ok(Check::Sentences(a.quantity()?))),
    ("validate_paragraphs", |a| {
        let paragraphs = a.count("N")?;
        Ok(Check::FirstWord { paragraphs, index: a.index("i", paragraphs)?, word: a.text("first_word")? })
    }),
    ("verify_postscript", |a| Ok(Check::Postscript(a.text("postscript_marker")?))),
    ("validate_placeholders", |a| Ok(Check::Placeholders(a.count("N")?))),
    ("verify_bullet_points", |a| Ok(Check::Bullets(a.count("N")?))),
    ("validate_title", |_| Ok(Check::Title)),
    ("validate_choice", |a| Ok(Check::Choice(a.texts("options")?))),
    ("validate_highlighted_sections", |a| Ok(Check::Highlights(a.count("N")?))),
    ("validate_sections", |a| {
        Ok(Check::Sections { header: a.header("section_splitter")?, count: a.count("N")? })
    }),
    ("validate_json_format", |_| Ok(Check::Json)),
    ("validate_repeat_prompt", |a| Ok(Check::RepeatPrompt(a.text("original_prompt")?))),
    ("validate_two_responses", |_| Ok(Check::TwoResponses)),
    ("validate_uppercase", |_| Ok(Check::Uppercase)),
    ("validate_lowercase", |_| Ok(Check::Lowercase)),
    ("validate_frequency_capital_words", |a| Ok(Check::CapitalWords(a.quantity()?))),
    ("validate_end", |a| Ok(Check::End(a.text("end_phrase")?))),
    ("validate_quotation", |_| Ok(Check::Quotation)),
    ("validate_no_commas", |_| Ok(Check::NoCommas)),
];

impl Check {
    /// Reads a check. Arguments that it does not read may be there, as data sets list the arguments of all.
    pub(super) fn read(given: &Map<String, Value>) -> Result<Self, RowProblem> {
        let Some(Value::String(name)) = given.get("func_name") else { return Err(RowProblem::NotChecks) };
        match CHECKS.iter().find(|(known, _)| known == name) {
            Some((check, read)) => read(&Arguments { check, given }),
            None => Err(RowProblem::UnknownCheck {
                name: name.clone(),
                known: CHECKS.map(|(name, _)| name).to_vec(),
            }),
        }
    }

    /// True if a text, without white space around it, passes.
    pub(super) fn accepts(&self, answer: &str) -> bool {
        match self {
            Self::Keywords(words) => contained(words, answer) == words.len(),
            Self::WordFrequency { word, count } => text::count_words(&answer.to_lowercase(), word) == *count,
            Self::ForbiddenWords(words) => contained(words, answer) == 0,
            Self::LetterFrequency { letter, count } => {
                answer.chars().filter(|c| c == letter).count() == *count
            }
            Self::Language(expected) => language::detect(answer) == Some(*expected),
            Self::Dividers(count) => {
                let mut paragraphs = answer.split("* * *");
                answer.split("* * *").count() == *count && paragraphs.all(|part| !part.trim().is_empty())
            }
            Self::Words(quantity) => quantity.accepts(answer.split_whitespace().count(), quantity.tenth()),
            Self::Sentences(quantity) => quantity.accepts(text::sentences(answer), 1),
            Self::FirstWord { paragraphs, index, word } => {
                answer.split("\n\n").count() == *paragraphs
                    && answer
                        .split("\n\n")
                        .nth(index - 1)
                        .is_some_and(|p| p.trim().starts_with(word.as_str()))
            }
            Self::Postscript(marker) => {
                answer.find(marker.as_str()).is_some_and(|at| answer[at..].trim().len() > marker.len())
            }
            Self::Placeholders(count) => text::enclosed(answer, "[", "]") >= *count,
            Self::Bullets(count) => {
                answer.split('\n').filter(|line| line.trim().starts_with(['*', '-'])).count() == *count
            }
            Self::Title => text::enclosed(answer, "<<", ">>") > 0,
            Self::Choice(options) => options.iter().any(|option| answer.contains(option.as_str())),
            Self::Highlights(count) => text::enclosed(answer, "*", "*") >= *count,
            Self::Sections { header, count } => header.find_iter(answer).count() >= *count,
            Self::Json => serde_json::from_str::<serde::de::IgnoredAny>(answer).is_ok(),
            Self::RepeatPrompt(prompt) => answer.starts_with(prompt.as_str()),
            Self::TwoResponses => {
                let parts: Vec<&str> = answer.split("******").map(str::trim).take(3).collect();
                matches!(parts.as_slice(), [first, second] if first != second)
            }
            Self::Uppercase => answer == answer.to_uppercase(),
            Self::Lowercase => answer == answer.to_lowercase(),
            Self::CapitalWords(quantity) => quantity.accepts(text::capital_words(answer), quantity.tenth()),
            Self::End(phrase) => answer.ends_with(phrase.as_str()),
            Self::Quotation => answer.starts_with('"') && answer.ends_with('"'),
            Self::NoCommas => !answer.contains(','),
        }
    }
}

/// Number of words that occur in a text, in any case.
fn contained(words: &[String], answer: &str) -> usize {
    let answer = answer.to_lowercase();
    words.iter().filter(|word| answer.contains(&word.to_lowercase())).count()
}

/// The arguments of a check.
struct Arguments<'a> {
    check: &'static str,
    given: &'a Map<String, Value>,
}

impl Arguments<'_> {
    fn read<T>(
        &self,
        argument: &'static str,
        expected: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, RowProblem> {
        let value = self.given.get(argument).filter(|value| !value.is_null());
        value.and_then(read).ok_or_else(|| RowProblem::Argument {
            check: self.check,
            argument,
            expected,
            found: value.map_or_else(|| "missing".to_owned(), Value::to_string),
        })
    }

    fn text(&self, argument: &'static str) -> Result<String, RowProblem> {
        self.read(argument, "text", |value| value.as_str().map(str::to_owned))
    }

    fn texts(&self, argument: &'static str) -> Result<Vec<String>, RowProblem> {
        self.read(argument, "a list of texts", |value| {
            let texts: Option<Vec<String>> =
                value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect();
            texts.filter(|texts| !texts.is_empty())
        })
    }

    fn count(&self, argument: &'static str) -> Result<usize, RowProblem> {
        self.read(argument, "a whole number, 0 or larger", count)
    }

    fn index(&self, argument: &'static str, last: usize) -> Result<usize, RowProblem> {
        self.read(argument, "from 1 to `N`", |value| count(value).filter(|index| (1..=last).contains(index)))
    }

    fn letter(&self, argument: &'static str) -> Result<char, RowProblem> {
        self.read(argument, "one character", |value| {
            let mut characters = value.as_str()?.chars();
            characters.next().filter(|_| characters.next().is_none())
        })
    }

    fn language(&self, argument: &'static str) -> Result<Lang, RowProblem> {
        self.read(argument, "the code of a language that can be told apart, such as \"en\"", |value| {
            language::named(value.as_str()?)
        })
    }

    fn quantity(&self) -> Result<Quantity, RowProblem> {
        let expected = "\"at least\", \"around\" or \"at most\"";
        let bound = self.read("quantifier", expected, |value| match value.as_str()? {
            "at least" => Some(Bound::AtLeast),
            "around" => Some(Bound::Around),
            "at most" => Some(Bound::AtMost),
            _ => None,
        })?;
        Ok(Quantity { number: self.count("N")?, bound })
    }

    /// The header of a section: a word and a number.
    fn header(&self, argument: &'static str) -> Result<Regex, RowProblem> {
        self.read(argument, "text", |value| {
            Regex::new(&format!(r"(?i)\s?{}\s?\d+\s?", regex::escape(value.as_str()?))).ok()
        })
    }
}

/// A whole number, also in the form of a float.
fn count(value: &Value) -> Option<usize> {
    let float = || value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..1e15).contains(x)).map(|x| x as u64);
    value.as_u64().or_else(float).and_then(|number| usize::try_from(number).ok())
}
