//! Numbers: digits with thousands separators, decimals and exponents.

use super::lexer::Lexer;
use super::rational::Rational;
use super::token::Token;

/// Separators of thousands that are never decimal points.
const GROUP_MARKS: [&str; 11] =
    [",\\! ", ",\\!", "{,}", "\\,", "\\ ", "\\;", "~", "\u{202f}", "\u{a0}", "\u{2009}", " "];

impl Lexer<'_> {
    /// A number: digits with or without thousands separators, decimals, an exponent of ten.
    pub(super) fn number(&mut self) -> Option<()> {
        let mut digits = self.digits();
        let plain = self.out.last().is_none_or(|t| t.token != Token::Subscript);
        let mut mark = None;
        if (1..=3).contains(&digits.len()) && plain && !(digits == "0" && self.reading.decimal_comma) {
            mark = self.group_mark();
        }
        if let Some(mark) = mark {
            while self.follows(mark) && self.is_group_of_three(mark.chars().count()) {
                self.skip(mark.chars().count());
                digits += &self.digits();
            }
        }
        let mut whole = true;
        let mut decimals = 0;
        if let Some(length) = self.decimal_comma(mark) {
            self.skip(length);
            let fraction = self.digits();
            decimals = fraction.len();
            digits += &fraction;
            whole = false;
        } else if self.peek(0) == Some('.') {
            if self.peek(1).is_some_and(|c| c.is_ascii_digit()) {
                self.at += 1;
                let fraction = self.digits();
                decimals = fraction.len();
                digits += &fraction;
                whole = false;
            } else if self.chars[self.at + 1..].starts_with(&['\\']) {
                // `0.\overline{3}`
                self.at += 1;
                whole = false;
            } else if self.has_digits_in_brackets() {
                // `0.(3)`; after decimals, brackets are a factor.
                return self.repeating_in_brackets(&digits);
            }
        }
        let exponent = self.exponent();
        whole &= exponent.is_none();
        let value = Rational::decimal(&digits, decimals, exponent.unwrap_or(0))?;
        self.push(Token::Number(value, whole))?;
        self.decimals = exponent.is_none().then_some(decimals);
        Some(())
    }

    fn digits(&mut self) -> String {
        let mut digits = String::new();
        while let Some(c) = self.peek(0).filter(char::is_ascii_digit) {
            digits.push(c);
            self.skip(1);
        }
        digits
    }

    /// The thousands separator at the current position, if there is one.
    fn group_mark(&self) -> Option<&'static str> {
        let comma = self.reading.thousands && self.brackets == 0 && self.is_grouped_by_commas();
        let found = GROUP_MARKS
            .into_iter()
            .find(|mark| self.follows(mark))
            .or_else(|| (comma && self.follows(",")).then_some(","))
            .or_else(|| self.points_are_marks().then_some("."))?;
        self.is_group_of_three(found.chars().count()).then_some(found)
    }

    /// True if all commas around the current position, without spaces, are followed by three digits: `1,234,567`, but not the
    /// list `27,54,108`.
    fn is_grouped_by_commas(&self) -> bool {
        let in_run = |c: char| c.is_ascii_digit() || c == ',';
        let before = self.chars[..self.at].iter().rev().take_while(|c| in_run(**c)).count();
        let run = self.chars[self.at - before..].iter().take_while(|c| in_run(**c));
        let run: String = run.collect();
        let mut groups = run.split(',');
        groups.next().is_some_and(|first| first.len() <= 3) && groups.all(|group| group.len() == 3)
    }

    /// True if points separate thousands, which only a decimal comma after them shows: `1.234,5`.
    fn points_are_marks(&self) -> bool {
        let mut at = 0;
        while self.peek(at) == Some('.') && self.is_group_of_three(at + 1) {
            at += 4;
        }
        let digit = |i| self.peek(i).is_some_and(|c: char| c.is_ascii_digit());
        self.reading.decimal_comma && at > 0 && self.peek(at) == Some(',') && digit(at + 1)
    }

    /// Length of the decimal comma at the current position. A comma that also separates thousands is none, and neither
    /// is one between three numbers.
    fn decimal_comma(&self, mark: Option<&str>) -> Option<usize> {
        let braced = self.follows("{,}");
        let bare = self.reading.decimal_comma && self.brackets == 0 && self.follows(",");
        if !(braced || bare) || mark.is_some_and(|mark| mark.contains(',')) {
            return None;
        }
        let length = if braced { 3 } else { 1 };
        let digit = |i| self.peek(i).is_some_and(|c: char| c.is_ascii_digit());
        let left = self.chars.len() - self.at;
        let end = (length..=left).find(|&i| !digit(i))?;
        let another = self.peek(end) == Some(',') && digit(end + 1);
        (end > length && !another).then_some(length)
    }

    /// True if there are exactly three digits from a character on, counted from the current one.
    fn is_group_of_three(&self, start: usize) -> bool {
        let digit = |i| self.peek(start + i).is_some_and(|c| c.is_ascii_digit());
        digit(0) && digit(1) && digit(2) && !digit(3)
    }

    /// The exponent of `1.5e3`; the letter alone is Euler's number.
    fn exponent(&mut self) -> Option<i64> {
        if !matches!(self.peek(0), Some('e' | 'E')) {
            return None;
        }
        let signed = usize::from(matches!(self.peek(1), Some('+' | '-')));
        self.peek(1 + signed).filter(char::is_ascii_digit)?;
        let negative = self.peek(1) == Some('-');
        self.at += 1 + signed;
        // An exponent that does not fit is far beyond the supported range.
        let value = self.digits().parse().unwrap_or(i64::from(u32::MAX));
        Some(if negative { -value } else { value })
    }

    /// True if digits in brackets follow the decimal point at the current position.
    fn has_digits_in_brackets(&self) -> bool {
        let Some(inside) = self.chars[self.at + 1..].strip_prefix(&['(']) else { return false };
        let length = inside.iter().take_while(|c| c.is_ascii_digit()).count();
        length > 0 && inside.get(length) == Some(&')')
    }

    /// `0.(36)`, of which `0` has been read.
    fn repeating_in_brackets(&mut self, whole: &str) -> Option<()> {
        self.push(Token::Number(Rational::decimal(whole, 0, 0)?, false))?;
        self.skip(2);
        let digits = self.digits();
        self.skip(1);
        self.repeated(&digits, 0)
    }

    /// `\overline{36}` after a number.
    pub(super) fn repeating(&mut self) -> Option<()> {
        let decimals = self.decimals?;
        let digits = self.raw_group()?;
        self.repeated(&digits, decimals)
    }

    /// Digits that repeat after a number of decimals.
    fn repeated(&mut self, digits: &str, decimals: usize) -> Option<()> {
        if digits.is_empty() || digits.len() > 40 || !digits.chars().all(|c| c.is_ascii_digit()) {
            return None;
        }
        let value = Rational::decimal(digits, decimals, 0)?;
        let nines = Rational::integer(10).power(digits.len() as i64)?.add(&Rational::integer(-1))?;
        self.push(Token::Repeating(value.divide(&nines)?))
    }
}
