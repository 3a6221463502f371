use serde::{Deserialize, Serialize};

/// A place in a completion where the answer may stand.
///
/// Each is found by a linear scan from the end: when a completion holds several, the last one counts, so that
/// an answer that the policy takes back is not the one that is judged.
///
/// Of several places, the first one that is there decides, even if nothing can be read from it: what a policy
/// marks as its answer is its answer. Only [`Extract::AnswerIs`] and [`Extract::LastNumber`], which are
/// guesses, give way to the next place when what they find cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extract {
    /// The whole completion.
    Whole,
    /// The rest of the line after `####`, as in GSM8K.
    Hashes,
    /// The argument of `\boxed{…}` or `\fbox{…}`; braces are matched.
    Boxed,
    /// Between `<answer>` and `</answer>`.
    AnswerTag,
    /// After `answer is`, `answer:` or `answer =`, to the end of the sentence or line.
    AnswerIs,
    /// The last number in the text, with its sign, currency, thousands separators, fraction and percent sign.
    /// Finds something in almost any text: a policy can be rewarded for a number that it never meant as its
    /// answer.
    LastNumber,
}

impl Extract {
    /// The text that stands there, without white space around it; `None` if there is none.
    pub fn find(self, text: &str) -> Option<&str> {
        let found = match self {
            Self::Whole => text,
            Self::Hashes => {
                let (_, rest) = text.rsplit_once("####")?;
                rest.trim_start_matches([' ', '\t']).lines().next().unwrap_or("")
            }
            Self::Boxed => boxed(text)?,
            Self::AnswerTag => {
                let (before, _) = text.rsplit_once("</answer>")?;
                before.rsplit_once("<answer>")?.1
            }
            Self::AnswerIs => answer_is(text)?,
            Self::LastNumber => last_number(text)?,
        };
        let found = found.trim();
        (!found.is_empty()).then_some(found)
    }
}

/// Reads the place that decides.
pub(crate) fn decide<'a, T>(
    places: &[Extract],
    text: &'a str,
    read: impl Fn(&'a str) -> Option<T>,
) -> Option<T> {
    for place in places {
        let Some(found) = place.find(text) else { continue };
        let answer = read(found);
        if answer.is_some() || !matches!(place, Extract::AnswerIs | Extract::LastNumber) {
            return answer;
        }
    }
    None
}

/// At least one place, none twice.
pub(crate) fn validate(places: &[Extract]) -> Result<(), String> {
    if places.is_empty() {
        return Err("`extract`: names no place to look for the answer".into());
    }
    let twice = places.iter().enumerate().any(|(i, place)| places[..i].contains(place));
    if twice { Err("`extract`: names a place twice".into()) } else { Ok(()) }
}

/// The argument of the last box. One whose braces never close is no answer.
fn boxed(text: &str) -> Option<&str> {
    let start = ["\\boxed", "\\fbox"].iter().filter_map(|name| Some(text.rfind(name)? + name.len())).max()?;
    let inside = text[start..].trim_start().strip_prefix('{')?;
    let mut depth = 1usize;
    let mut escaped = false;
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inside[..at]);
        }
    }
    None
}

/// What follows the last announcement of an answer.
fn answer_is(text: &str) -> Option<&str> {
    // ASCII case folding keeps byte positions.
    let lower = text.to_ascii_lowercase();
    let rest = lower.rmatch_indices("answer").find_map(|(at, word)| {
        let after = &text[at + word.len()..];
        let trimmed = after.trim_start_matches(['*', '_', ' ']);
        let announced = trimmed.strip_prefix([':', '=']).or_else(|| {
            let verb = trimmed.get(..2).filter(|v| v.eq_ignore_ascii_case("is"))?;
            let rest = &trimmed[verb.len()..];
            rest.starts_with(|c: char| !c.is_alphanumeric()).then_some(rest)
        })?;
        Some(announced.trim_start_matches([':', ' ', '*', '_']))
    })?;
    let line = rest.lines().find(|line| !line.trim().is_empty())?;
    let end = line.match_indices(['.', '?']).map(|(at, _)| at).find(|&at| {
        let after = &line[at + 1..];
        after.is_empty() || after.starts_with(|c: char| c.is_whitespace() || matches!(c, '*' | '"' | ')'))
    });
    Some(line[..end.unwrap_or(line.len())].trim_end_matches(['*', '_', ' ']))
}

/// The last run of characters that can make one number.
fn last_number(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut end = bytes.iter().rposition(u8::is_ascii_digit)? + 1;
    let mut start = end - 1;
    while start > 0 {
        let before = bytes[start - 1];
        let joins = before.is_ascii_digit()
            // A point, comma or slash belongs to the number when a digit stands before it too.
            || (matches!(before, b'.' | b',' | b'/') && bytes[start].is_ascii_digit()
                && (start >= 2 && bytes[start - 2].is_ascii_digit()))
            || (before == b'.' && bytes[start].is_ascii_digit());
        if !joins {
            break;
        }
        start -= 1;
    }
    // Sign and currency: -$5, $-5, −5.
    for _ in 0..2 {
        let prefix = text[..start].chars().next_back();
        match prefix {
            Some('$' | '€' | '£' | '¥' | '₹') => start -= prefix.map_or(0, char::len_utf8),
            // A minus sign is one only where no word or number ends right before it: `10-3` is a difference.
            Some('-' | '−') => {
                let length = prefix.map_or(0, char::len_utf8);
                let before = text[..start - length].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || c == ')') {
                    break;
                }
                start -= length;
            }
            _ => break,
        }
    }
    let after = text[end..].strip_prefix('\\').unwrap_or(&text[end..]);
    if after.starts_with('%') {
        end = text.len() - after.len() + 1;
    }
    Some(&text[start..end])
}

#[cfg(test)]
mod tests {
    use super::Extract;

    fn check(place: Extract, cases: &[(&str, Option<&str>)]) {
        for (text, expected) in cases {
            assert_eq!(place.find(text), *expected, "{place:?} in {text:?}");
        }
    }

    #[test]
    fn whole_and_hashes() {
        check(Extract::Whole, &[(" 132 \n", Some("132")), ("  ", None), ("", None)]);
        check(
            Extract::Hashes,
            &[
                ("9*2=18\n#### 18", Some("18")),
                ("#### 5\nno, wait\n#### 1,800\nDone.", Some("1,800")),
                ("####18", Some("18")),
                ("#### ", None),
                ("####\n18", None),
                ("### 18", None),
            ],
        );
    }

    #[test]
    fn the_last_box_counts_and_braces_match() {
        check(
            Extract::Boxed,
            &[
                (r"so \boxed{18}.", Some("18")),
                (r"\boxed{\frac{1}{2}}", Some(r"\frac{1}{2}")),
                (r"\boxed{5} no, \boxed{6}", Some("6")),
                (r"\boxed {7}", Some("7")),
                (r"\fbox{8}", Some("8")),
                (r"\boxed{\{1, 2\}}", Some(r"\{1, 2\}")),
                (r"\boxed{5} then \boxed{6", None),
                (r"\boxed{}", None),
                (r"\boxed 9", None),
                ("18", None),
            ],
        );
    }

    #[test]
    fn tags_and_announcements() {
        check(
            Extract::AnswerTag,
            &[
                ("<think>5</think><answer> 6 </answer>", Some("6")),
                ("<answer>5</answer><answer>6</answer>", Some("6")),
                ("<answer>5", None),
                ("5</answer>", None),
            ],
        );
        check(
            Extract::AnswerIs,
            &[
                ("The answer is 18.", Some("18")),
                ("The answer is 3.5 dollars. Next.", Some("3.5 dollars")),
                ("**Answer:** $5", Some("$5")),
                ("Answer: 7\nBye", Some("7")),
                ("The answer is: \\frac{1}{2}", Some("\\frac{1}{2}")),
                ("the final ANSWER IS 4", Some("4")),
                ("The answer is 4. No: the answer is 5.", Some("5")),
                ("The answer:\n\n12", Some("12")),
                ("the answer is **42**.", Some("42")),
                ("answer = 3", Some("3")),
                ("The answer isn't 3", None),
                ("The answer issue", None),
                ("answers vary", None),
                ("ANSWER IS", None),
            ],
        );
    }

    #[test]
    fn the_last_number() {
        check(
            Extract::LastNumber,
            &[
                ("She makes 9 * 2 = $18 every day.", Some("$18")),
                ("a profit of $1,450,000.", Some("$1,450,000")),
                ("about 3.5 or 7/2 of it", Some("7/2")),
                ("it is -5", Some("-5")),
                ("it is −5", Some("−5")),
                ("it is -$5.50", Some("-$5.50")),
                ("10-3", Some("3")),
                ("about .5", Some(".5")),
                ("rises by 12%", Some("12%")),
                (r"rises by 12\%", Some(r"12\%")),
                ("no number", None),
                ("x2", Some("2")),
                ("5.", Some("5")),
                ("1, 2", Some("2")),
                ("€5 naïve", Some("€5")),
            ],
        );
    }
}
