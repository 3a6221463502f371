use rloom_core::{SettingError, SettingProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A place of the answer in a completion.
///
/// Each is found by a linear scan from the end: of several occurrences the last one counts, so that an answer that the
/// policy corrects is not judged.
///
/// Only the text after reasoning is searched: what follows the last `</think>`. Reasoning that does not end has no answer.
///
/// Of several places, the first one that occurs is judged, even if it cannot be read: the text that a policy marks as its
/// answer is its answer. Only `answer_is`, `formula` and `last_number`, which are heuristics, fall back to the next place
/// if the text cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Extract {
    /// The whole completion.
    Whole,
    /// The rest of the line after `####`, as in GSM8K.
    Hashes,
    /// The argument of `\boxed{…}` or `\fbox{…}`, with nested braces. Boxes with only a comma, `and` or `or` and a name (`y =`)
    /// between them are one answer with several parts.
    Boxed,
    /// The text between `<answer>` and `</answer>`.
    AnswerTag,
    /// The text after `answer is`, `answers are`, `answer would be`, `answer:` or `answer =`, to the end of the sentence or line,
    /// or the first line below a heading `Final Answer`.
    AnswerIs,
    /// The last formula: `$…$`, `$$…$$`, `\(…\)` or `\[…\]`.
    Formula,
    /// The last number in the text, with its sign, currency, thousands separators, fraction and percent sign.
    /// Matches in almost any text: a policy can be rewarded for a number that it did not mean as its answer.
    LastNumber,
}

impl Extract {
    /// Name in configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Hashes => "hashes",
            Self::Boxed => "boxed",
            Self::AnswerTag => "answer_tag",
            Self::AnswerIs => "answer_is",
            Self::Formula => "formula",
            Self::LastNumber => "last_number",
        }
    }

    /// The text at this place, without surrounding white space; `None` if there is none.
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
            Self::Formula => formula(text)?,
            Self::LastNumber => last_number(text)?,
        };
        let found = found.trim();
        (!found.is_empty()).then_some(found)
    }
}

/// A completion with an answer at the first of the places.
pub(crate) fn write_first(places: &[Extract], answer: &str) -> Option<String> {
    Some(match places.first()? {
        Extract::Whole | Extract::LastNumber => answer.to_owned(),
        Extract::Hashes => format!("#### {answer}"),
        Extract::Boxed => format!("\\boxed{{{answer}}}"),
        Extract::AnswerTag => format!("<answer>{answer}</answer>"),
        Extract::AnswerIs => format!("The answer is {answer}."),
        Extract::Formula => format!("${answer}$"),
    })
}

/// Reads the answer at the first place that occurs.
pub(crate) fn read_first<'a, T>(
    places: &[Extract],
    text: &'a str,
    read: impl Fn(&'a str) -> Option<T>,
) -> Option<T> {
    let text = after_reasoning(text)?;
    for place in places {
        let Some(found) = place.find(text) else { continue };
        let answer = read(found);
        if answer.is_some() || !matches!(place, Extract::AnswerIs | Extract::Formula | Extract::LastNumber) {
            return answer;
        }
    }
    None
}

/// Checks that there is at least one place, and none twice.
pub(crate) fn validate(places: &[Extract]) -> Result<(), SettingError> {
    if places.is_empty() {
        return Err(SettingProblem::Empty.at("extract"));
    }
    match places.iter().enumerate().find(|(i, place)| places[..*i].contains(place)) {
        Some((_, place)) => {
            Err(SettingProblem::Repeated { value: format!("`{}`", place.name()) }.at("extract"))
        }
        None => Ok(()),
    }
}

/// The text after the last `</think>`; `None` if reasoning begins and does not end.
pub(crate) fn after_reasoning(text: &str) -> Option<&str> {
    let text = text.rsplit_once("</think>").map_or(text, |(_, after)| after);
    (!text.contains("<think>")).then_some(text)
}

/// Start of the last box, at its command, and start of its argument.
fn last_box(text: &str) -> Option<(usize, usize)> {
    // One search for both commands: if one of them is missing, the search for it would read the whole text each time.
    let (start, end) = text.rmatch_indices("box").find_map(|(at, _)| {
        let (before, after) = (&text[..at], &text[at..]);
        if after.starts_with("boxed") && before.ends_with('\\') {
            return Some((at - 1, at + 5));
        }
        before.ends_with("\\f").then_some((at - 2, at + 3))
    })?;
    let argument = text[end..].trim_start().strip_prefix('{')?;
    Some((start, text.len() - argument.len()))
}

/// The argument of a last box without braces, which is what is left of its formula: `$\boxed 12$`.
fn box_without_braces(text: &str) -> Option<&str> {
    let (_, after) = text.rsplit_once("\\boxed ")?;
    let (argument, _) = after.split_once('$')?;
    let argument = argument.trim();
    (!argument.is_empty() && !argument.contains(['{', '\n'])).then_some(argument)
}

/// Position of the brace that closes an argument.
fn closing_brace(text: &str, start: usize) -> Option<usize> {
    let mut depth = 1usize;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(start) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// The argument of the last box, or several boxes with what is between them; `None` if the last one does not close.
fn boxed(text: &str) -> Option<&str> {
    let Some((mut first, argument)) = last_box(text) else { return box_without_braces(text) };
    let end = closing_brace(text, argument)?;
    let (mut several, mut named) = (false, false);
    while let Some((at, inside)) = last_box(&text[..first]) {
        let Some(close) = closing_brace(&text[..first], inside) else { break };
        let Some(join) = Join::of(&text[close + 1..first]) else { break };
        named |= join == Join::Named;
        (first, several) = (at, true);
    }
    if named && let Some(start) = name_before(&text[..first]) {
        first = start;
    }
    Some(if several { &text[first..=end] } else { &text[argument..end] })
}

/// What makes two boxes parts of one answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Join {
    /// A comma, `and` or `or`.
    Plain,
    /// The same and the name of the second part: `, y =`.
    Named,
}

impl Join {
    /// Reads the text between two boxes; `None` if it does not join them.
    fn of(between: &str) -> Option<Self> {
        // Longer texts are sentences.
        if between.len() > 40 {
            return None;
        }
        let words = between.replace("\\text", " ").replace(['$', '{', '}', '\\', '~'], " ");
        let parts = words.split([' ', '\n', '\t']).filter(|part| !part.is_empty());
        let parts: Vec<&str> = parts.collect();
        let separators = parts.iter().take_while(|part| matches!(**part, "," | ";" | "and" | "or")).count();
        let name = parts[separators..].concat();
        match name.strip_suffix('=') {
            _ if separators == 0 => None,
            Some(name) => is_name(name).then_some(Self::Named),
            None => name.is_empty().then_some(Self::Plain),
        }
    }
}

/// True for a letter, with or without an index: `x`, `x_1`.
fn is_name(text: &str) -> bool {
    let mut rest = text.chars();
    let index = |rest: &str| {
        rest.is_empty()
            || rest.strip_prefix('_').is_some_and(|index| {
                (1..=3).contains(&index.len()) && index.chars().all(|c| c.is_ascii_alphanumeric())
            })
    };
    rest.next().is_some_and(|c| c.is_ascii_alphabetic()) && index(rest.as_str())
}

/// Start of the name of a part at the end of a text: `x =`.
fn name_before(text: &str) -> Option<usize> {
    let named = text.trim_end().strip_suffix('=')?.trim_end();
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '{' | '}');
    let start = named.trim_end_matches(is_part).len();
    is_name(&named[start..].replace(['{', '}'], "")).then_some(start)
}

/// The content of the last pair of delimiters.
fn formula(text: &str) -> Option<&str> {
    let bracket = |open: &str, close: &str| {
        let end = text.rfind(close)?;
        let start = text[..end].rfind(open)? + open.len();
        Some((start, end))
    };
    let found = [bracket("\\(", "\\)"), bracket("\\[", "\\]"), between_dollars(text)];
    let (start, end) = found.into_iter().flatten().max_by_key(|(_, end)| *end)?;
    Some(&text[start..end])
}

/// The range between the last two dollar signs; `None` unless all signs form pairs, as signs of currency do not.
fn between_dollars(text: &str) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let (mut count, mut at) = (0usize, 0);
    // Ends of the last opening sign and starts of the last closing one.
    let (mut open, mut range) = (0, None);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'$' => {
                let length = if bytes.get(at + 1) == Some(&b'$') { 2 } else { 1 };
                if count.is_multiple_of(2) {
                    open = at + length;
                } else {
                    range = Some((open, at));
                }
                (count, at) = (count + 1, at + length);
            }
            _ => at += 1,
        }
    }
    range.filter(|_| count.is_multiple_of(2))
}

/// The text after the last announcement of an answer.
fn answer_is(text: &str) -> Option<&str> {
    // ASCII case folding keeps byte positions.
    let lower = text.to_ascii_lowercase();
    let mut found = lower.rmatch_indices("answer");
    let rest = found.find_map(|(at, word)| announced(&text[..at], &text[at + word.len()..]))?;
    let line = rest.lines().find(|line| !line.trim().is_empty())?;
    let end = line.match_indices(['.', '?', '!']).find_map(|(at, mark)| {
        let after = &line[at + 1..];
        let closes = after.is_empty() || after.starts_with(['*', '"', ')']);
        // `5! + 1` continues; `42! Done` does not.
        let next = after.trim_start().chars().next();
        let begins = after.starts_with(char::is_whitespace)
            && (mark != "!" || next.is_none_or(|c| c.is_uppercase() || matches!(c, '*' | '"' | ')')));
        (closes || begins).then_some(at)
    });
    Some(line[..end.unwrap_or(line.len())].trim_end_matches(['*', '_', ' ']))
}

/// What an answer is said to be equal to: `answer: 7`, `answer to the question is therefore 7`, `answers are 1 and 2`, or below
/// a heading, `## Final Answer`.
fn announced<'a>(before: &str, after: &'a str) -> Option<&'a str> {
    let marks = ['*', '_', ' '];
    let after = after.strip_prefix(['s', 'S']).unwrap_or(after).trim_start_matches(marks);
    let marks = [':', '*', '_', ' '];
    if let Some(rest) = after.strip_prefix([':', '=']) {
        return Some(rest.trim_start_matches(marks));
    }
    if after.starts_with('\n') {
        let line = before.rsplit('\n').next().unwrap_or(before);
        let words = line.trim_start_matches(['#', '*', '_', ' ']).trim_end();
        let is_heading =
            words.len() < line.len() && (words.is_empty() || words.eq_ignore_ascii_case("final"));
        return is_heading.then_some(after);
    }
    let object = ["to the question", "to this question", "to the problem", "to this problem"];
    let after = object.iter().find_map(|words| without_words(after, words)).unwrap_or(after);
    let verbs = ["is", "are", "would be", "will be", "must be", "should be"];
    let mut rest = verbs.iter().find_map(|verb| without_words(after, verb))?.trim_start_matches(marks);
    let adverbs =
        ["therefore", "thus", "then", "hence", "simply", "exactly", "approximately", "about", "equal to"];
    while let Some(shorter) = adverbs.iter().find_map(|adverb| without_words(rest, adverb)) {
        rest = shorter.trim_start_matches(marks);
    }
    Some(rest)
}

/// The text after words in any case, which must end there.
fn without_words<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    let start = text.get(..words.len()).filter(|start| start.eq_ignore_ascii_case(words))?;
    let rest = &text[start.len()..];
    (!rest.starts_with(char::is_alphanumeric)).then(|| rest.trim_start_matches(' '))
}

/// The last run of characters that can form a number.
fn last_number(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut end = bytes.iter().rposition(u8::is_ascii_digit)? + 1;
    let mut start = end - 1;
    while start > 0 {
        let before = bytes[start - 1];
        let joins = before.is_ascii_digit()
            // A point, comma or slash belongs to the number if it also follows a digit.
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
            // A minus sign after a word or number is not a sign: `10-3` is a difference.
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
    use super::{Extract, read_first};

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
    fn the_last_box_counts_with_nested_braces() {
        check(
            Extract::Boxed,
            &[
                (r"so \boxed{18}.", Some("18")),
                (r"\boxed{\frac{1}{2}}", Some(r"\frac{1}{2}")),
                (r"\boxed{5} no, \boxed{6}", Some("6")),
                (r"\boxed {7}", Some("7")),
                (r"\fbox{8}", Some("8")),
                (r"\boxed{\{1, 2\}}", Some(r"\{1, 2\}")),
                (r"\boxed{5} and \boxed{6}.", Some(r"\boxed{5} and \boxed{6}")),
                (r"$\boxed{5}$, $\boxed{6}$ or \fbox{7}", Some(r"\boxed{5}$, $\boxed{6}$ or \fbox{7}")),
                (r"\boxed{5} \text{ and } \boxed{6}", Some(r"\boxed{5} \text{ and } \boxed{6}")),
                (r"\boxed{4}. \boxed{5} and \boxed{6}", Some(r"\boxed{5} and \boxed{6}")),
                (r"\boxed{5} \boxed{6}", Some("6")),
                (r"$x = \boxed{5}$, $y = \boxed{6}$", Some(r"x = \boxed{5}$, $y = \boxed{6}")),
                (r"$x_{1}=\boxed{5}$ or $x_{2}=\boxed{6}$", Some(r"x_{1}=\boxed{5}$ or $x_{2}=\boxed{6}")),
                (r"so 2x = \boxed{5}, y = \boxed{6}", Some(r"\boxed{5}, y = \boxed{6}")),
                (r"\boxed{5}, where y = \boxed{6}", Some("6")),
                (r"x = \boxed{5} and \boxed{6}", Some(r"\boxed{5} and \boxed{6}")),
                (r"\boxed{5 and \boxed{6}", Some("6")),
                (r"\boxed{5} then \boxed{6", None),
                (r"\boxed{}", None),
                (r"\boxed 9", None),
                (r"so $x = \boxed 12$.", Some("12")),
                (r"$\boxed{5}$ or $\boxed 12$", Some("12")),
                (r"$\boxed 12$, no, $\boxed{5}$", Some("5")),
                (r"$\boxed {12$", None),
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
                ("The answer is 42!", Some("42")),
                ("**The answer is 42!** Great.", Some("42")),
                ("The answer is 42! Done.", Some("42")),
                ("The answer is 5! + 1.", Some("5! + 1")),
                ("The answer is 3.5 dollars. Next.", Some("3.5 dollars")),
                ("**Answer:** $5", Some("$5")),
                ("Answer: 7\nBye", Some("7")),
                ("The answer is: \\frac{1}{2}", Some("\\frac{1}{2}")),
                ("the final ANSWER IS 4", Some("4")),
                ("The answer is 4. No: the answer is 5.", Some("5")),
                ("The answer:\n\n12", Some("12")),
                ("the answer is **42**.", Some("42")),
                ("answer = 3", Some("3")),
                ("the answers are 1 and 2.", Some("1 and 2")),
                ("The answer to the question is therefore 7.", Some("7")),
                ("So, the answer would be 12.", Some("12")),
                ("the answer is approximately equal to 12", Some("12")),
                ("### Final Answer\n\n7\n", Some("7")),
                ("**Final Answer**\n7", Some("7")),
                ("that is my final answer\n7", None),
                ("I answer\n7", None),
                ("the answer to it is 7", None),
                ("The answer isn't 3", None),
                ("The answer issue", None),
                ("answers vary", None),
                ("ANSWER IS", None),
            ],
        );
    }

    #[test]
    fn the_last_formula() {
        check(
            Extract::Formula,
            &[
                ("We have $x=3$ and $y = 4$.", Some("y = 4")),
                (r"$x=3$, so \(y = 4\).", Some("y = 4")),
                (r"\(x=3\), so $$y = 4$$", Some("y = 4")),
                ("so\n\\[\n  7\n\\]\nas claimed", Some("7")),
                (r"$\$5$", Some(r"\$5")),
                ("it costs $5", None),
                ("$5 and $6 and $7", None),
                ("$$ $$", None),
                (r"\) 5 \(", None),
                ("18", None),
            ],
        );
    }

    #[test]
    fn reasoning_is_not_searched() {
        let find = |text| read_first(&[Extract::Boxed, Extract::Whole], text, Some);
        assert_eq!(find(r"<think>\boxed{1}</think> \boxed{2} "), Some("2"));
        // The prompt may have begun the reasoning.
        assert_eq!(find(r"\boxed{1}</think>It is 2"), Some("It is 2"));
        assert_eq!(find(r"\boxed{1}</think>"), None);
        assert_eq!(find(r"<think>\boxed{1}"), None);
        assert_eq!(find(r"<think>1</think>2<think>\boxed{3}"), None);
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
