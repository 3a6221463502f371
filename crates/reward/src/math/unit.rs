//! Text after a number: units, currencies and counted nouns.

use super::token::{Spaced, Token};

/// Known units. Two answers with different units are different, regardless of their numbers; units are not converted.
/// Other words (`18 eggs`) are counted nouns and are not compared.
const UNITS: [(&str, &[&str]); 57] = [
    (ANY, &["unit"]),
    ("usd", &["dollar", "usd", "buck"]),
    ("cent", &["cent", "¢"]),
    ("eur", &["euro", "eur"]),
    ("gbp", &["pound sterling", "gbp"]),
    ("inr", &["rupee", "inr", "rs"]),
    ("jpy", &["yen", "jpy"]),
    ("mm", &["mm", "millimeter", "millimetre"]),
    ("cm", &["cm", "centimeter", "centimetre"]),
    ("m", &["m", "meter", "metre"]),
    ("km", &["km", "kilometer", "kilometre"]),
    ("inch", &["inch", "inche"]),
    ("foot", &["foot", "feet", "ft"]),
    ("yard", &["yard", "yd"]),
    ("mile", &["mile", "mi"]),
    ("mg", &["mg", "milligram"]),
    ("g", &["g", "gram"]),
    ("kg", &["kg", "kilogram", "kilo"]),
    ("tonne", &["ton", "tonne"]),
    ("pound", &["lb", "pound"]),
    ("ounce", &["oz", "ounce"]),
    ("ms", &["ms", "millisecond"]),
    ("s", &["s", "sec", "second"]),
    ("minute", &["min", "minute"]),
    ("h", &["h", "hr", "hour"]),
    ("day", &["day"]),
    ("week", &["week"]),
    ("month", &["month"]),
    ("year", &["year", "yr"]),
    ("ml", &["ml", "milliliter", "millilitre"]),
    ("l", &["l", "liter", "litre"]),
    ("gallon", &["gal", "gallon"]),
    ("quart", &["qt", "quart"]),
    ("mph", &["mph"]),
    ("kph", &["kph", "kmh"]),
    ("degree", &["deg", "degree"]),
    ("radian", &["rad", "radian"]),
    ("celsius", &["celsius"]),
    ("fahrenheit", &["fahrenheit"]),
    ("dozen", &["dozen"]),
    ("watt", &["w", "watt"]),
    ("kw", &["kw", "kilowatt"]),
    ("joule", &["j", "joule"]),
    ("kj", &["kj", "kilojoule"]),
    ("newton", &["n", "newton"]),
    ("pascal", &["pa", "pascal"]),
    ("kpa", &["kpa", "kilopascal"]),
    ("volt", &["v", "volt"]),
    ("ohm", &["ohm"]),
    ("kelvin", &["k", "kelvin"]),
    ("hertz", &["hz", "hertz"]),
    ("khz", &["khz", "kilohertz"]),
    ("mole", &["mol", "mole"]),
    ("calorie", &["cal", "calorie"]),
    ("acre", &["acre"]),
    ("hectare", &["ha", "hectare"]),
    ("nm", &["nm", "nanometer", "nanometre"]),
];

/// The unit that agrees with all others: `5 square units`.
const ANY: &str = "unit";

/// Abbreviations of quotients of units.
const QUOTIENTS: [(&str, [(&str, i64); 2]); 2] =
    [("mph", [("mile", 1), ("h", -1)]), ("kph", [("km", 1), ("h", -1)])];

/// The unit of an answer: the known ones with their exponents, in order. `square metres` equals `m^2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit(Vec<(&'static str, i64)>);

impl Unit {
    pub(crate) fn currency(name: &'static str) -> Self {
        Self(vec![(name, 1)])
    }

    /// The base of a number that is not decimal, as its unit.
    pub(crate) fn base(base: i64) -> Self {
        Self(vec![("base", base)])
    }

    /// True if the parts that both have are equal: `18 dollars` and `18 dollars per day` do not contradict each other.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(&other.0)
            .all(|((a, a_power), (b, b_power))| a_power == b_power && (a == b || [a, b].contains(&&ANY)))
    }
}

/// The unit that a word denotes, singular or plural.
fn named(word: &str) -> Option<&'static str> {
    let lower = word.to_lowercase();
    let is = |text: &str| UNITS.iter().find(|(_, words)| words.contains(&text)).map(|(name, _)| *name);
    is(&lower).or_else(|| lower.strip_suffix('s').filter(|singular| !singular.is_empty()).and_then(is))
}

/// True if a run of lower-case letters is a unit and not a product of variables.
pub(super) fn is_known(lower: &str) -> bool {
    named(lower).is_some()
}

/// The factor that a word denotes.
pub(super) fn scale(word: &str) -> Option<i64> {
    Some(match word.to_lowercase().as_str() {
        "hundred" => 100,
        "thousand" => 1_000,
        "million" => 1_000_000,
        "billion" => 1_000_000_000,
        "trillion" => 1_000_000_000_000,
        _ => return None,
    })
}

/// Qualifiers and their synonyms; answers with different qualifiers are different.
const QUALIFIERS: [(&str, &[&str]); 14] = [
    ("am", &["am"]),
    ("pm", &["pm"]),
    ("north", &["north"]),
    ("south", &["south"]),
    ("east", &["east"]),
    ("west", &["west"]),
    ("left", &["left"]),
    ("right", &["right"]),
    ("more", &["more", "above", "over", "gain", "profit"]),
    ("less", &["less", "fewer", "below", "under", "loss"]),
    ("before", &["before", "ago", "earlier"]),
    ("after", &["after", "later"]),
    ("bc", &["bc", "bce"]),
    ("ad", &["ad", "ce"]),
];

/// Words that can change the meaning of the number before them; an answer that contains one is unreadable.
const NOT_A_UNIT: [&str; 37] = [
    "not",
    "no",
    "never",
    "isn",
    "wrong",
    "incorrect",
    "false",
    "but",
    "except",
    "plus",
    "minus",
    "times",
    "divided",
    "multiplied",
    "half",
    "halves",
    "third",
    "thirds",
    "quarter",
    "quarters",
    "fifth",
    "fifths",
    "twice",
    "double",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "thousand",
    "million",
    "billion",
];

fn qualifier(word: &str) -> Option<&'static str> {
    let lower = word.to_lowercase();
    QUALIFIERS.iter().find(|(_, words)| words.contains(&lower.as_str())).map(|(name, _)| *name)
}

/// The parsed text after a number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tail {
    pub(crate) unit: Option<Unit>,
    pub(crate) percent: bool,
    /// The qualifier, if there is one.
    pub(crate) qualifier: Option<&'static str>,
}

/// Parses all text after a number as its unit; `None` if a token cannot be part of a unit. Digits cannot: an answer with
/// a second number is not truncated to the first.
pub(super) fn tail(tokens: &[Spaced]) -> Option<Tail> {
    let mut tail = Tail::default();
    let mut parts = Vec::new();
    // The exponent of the next unit: from `square`, and its sign from `/` or `per`.
    let (mut exponent, mut sign) = (1, 1);
    let mut rest = tokens.iter().map(|t| &t.token).peekable();
    while let Some(token) = rest.next() {
        let found = match token {
            Token::Percent => {
                tail.percent = true;
                None
            }
            Token::Words(word) => {
                let lower = word.to_lowercase();
                if NOT_A_UNIT.contains(&lower.as_str()) {
                    return None;
                }
                tail.qualifier = tail.qualifier.or(qualifier(word));
                match lower.as_str() {
                    "percent" | "pct" | "percentage" => tail.percent = true,
                    "square" | "sq" => exponent = 2,
                    "cubic" | "cu" => exponent = 3,
                    "per" => sign = -1,
                    // The power of the unit, not of the number.
                    "squared" => set_power(&mut parts, 2)?,
                    "cubed" => set_power(&mut parts, 3)?,
                    _ => {}
                }
                named(word)
            }
            Token::Variable(letter) => Some(letter_unit(letter)?),
            Token::Currency(name) => Some(*name),
            Token::Degree => match rest.peek() {
                Some(Token::Variable(c) | Token::Words(c)) if c == "C" || c == "F" => {
                    let name = if c == "C" { "celsius" } else { "fahrenheit" };
                    rest.next();
                    Some(name)
                }
                _ => Some("degree"),
            },
            Token::Divide => {
                sign = -1;
                None
            }
            // A product of units.
            Token::Times if !parts.is_empty() => None,
            Token::Power => {
                let group = rest.next_if_eq(&&Token::Group).is_some();
                let minus = rest.next_if_eq(&&Token::Minus).is_some();
                let power = raised(rest.next()?, minus)?;
                if group && rest.next() != Some(&Token::GroupEnd) {
                    return None;
                }
                set_power(&mut parts, power)?;
                None
            }
            _ => return None,
        };
        if let Some(name) = found {
            match QUOTIENTS.iter().find(|(short, _)| *short == name) {
                Some((_, quotient)) => parts.extend(quotient),
                None => parts.push((name, sign * exponent)),
            }
            (exponent, sign) = (1, 1);
        }
    }
    tail.unit = (!parts.is_empty()).then_some(Unit(parts));
    Some(tail)
}

/// The exponent of a unit.
fn raised(token: &Token, minus: bool) -> Option<i64> {
    let sign = if minus { -1 } else { 1 };
    match token {
        Token::Number(value, true) => {
            value.to_i64().map(|v| sign * v).filter(|v| matches!(v, -3..=-1 | 2 | 3))
        }
        _ => None,
    }
}

/// Sets the exponent of the last unit. `None` without a unit: `18^2` is not 18.
fn set_power(parts: &mut [(&'static str, i64)], power: i64) -> Option<()> {
    let (_, exponent) = parts.last_mut()?;
    *exponent *= power;
    Some(())
}

/// The unit that a letter abbreviates.
fn letter_unit(letter: &str) -> Option<&'static str> {
    match letter {
        "m" | "g" | "s" | "h" | "l" | "L" | "W" | "J" | "N" => named(letter),
        _ => None,
    }
}

/// True if a letter can be a unit.
pub(super) fn is_letter(letter: &str) -> bool {
    letter_unit(letter).is_some()
}

/// The currency that a word before a number denotes.
pub(super) fn leading_currency(word: &str) -> Option<Unit> {
    named(word).filter(|name| matches!(*name, "usd" | "eur" | "gbp" | "inr" | "jpy")).map(Unit::currency)
}
