use minijinja::{Error, ErrorKind};

/// Wall-clock time for templates that print the date. The caller provides it: rendering reads no clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DateTime {
    /// Year, as in 2026.
    pub year: u16,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, from 1.
    pub day: u8,
    /// Hour, 0 to 23.
    pub hour: u8,
    /// Minute.
    pub minute: u8,
    /// Second.
    pub second: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl DateTime {
    /// Midnight of a day; `None` if the day does not exist.
    pub fn date(year: u16, month: u8, day: u8) -> Option<Self> {
        let midnight = Self { year, month, day, hour: 0, minute: 0, second: 0 };
        midnight.is_valid().then_some(midnight)
    }

    fn is_valid(self) -> bool {
        (1..=12).contains(&self.month)
            && (1..=self.days_in_month(self.month)).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second < 60
    }

    fn is_leap(self) -> bool {
        self.year.is_multiple_of(4) && (!self.year.is_multiple_of(100) || self.year.is_multiple_of(400))
    }

    fn days_in_month(self, month: u8) -> u8 {
        match month {
            4 | 6 | 9 | 11 => 30,
            2 => 28 + u8::from(self.is_leap()),
            _ => 31,
        }
    }

    /// Day of the year, from 1.
    fn day_of_year(self) -> u32 {
        (1..self.month).map(|month| u32::from(self.days_in_month(month))).sum::<u32>() + u32::from(self.day)
    }

    /// Day of the week; Sunday is 0.
    fn weekday(self) -> usize {
        let years = i64::from(self.year) - 1;
        let leap_days = years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400);
        let days = years * 365 + leap_days + i64::from(self.day_of_year());
        days.rem_euclid(7) as usize
    }

    /// Formats as `strftime` of C and Python does in the C locale. `%-d` and similar directives omit leading zeros.
    pub(super) fn format(self, format: &str) -> Result<String, Error> {
        let invalid = |what: String| Error::new(ErrorKind::InvalidOperation, what);
        if !self.is_valid() {
            return Err(invalid(format!("{self:?} is not a valid date and time")));
        }
        let mut out = String::with_capacity(format.len() * 2);
        let mut rest = format.chars();
        while let Some(character) = rest.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            let mut directive = rest.next();
            let unpadded = directive == Some('-');
            if unpadded {
                directive = rest.next();
            }
            let Some(directive) = directive else {
                return Err(invalid(format!("strftime_now: {format:?} ends in an incomplete directive")));
            };
            let unsupported =
                || invalid(format!("strftime_now: %{directive} is not supported (in {format:?})"));
            let piece = match self.directive(directive).ok_or_else(unsupported)? {
                Field::Text(text) => text,
                Field::Number(value, _) if unpadded => value.to_string(),
                Field::Number(value, Pad::Zeros(width)) => format!("{value:0width$}"),
                Field::Number(value, Pad::Spaces(width)) => format!("{value:width$}"),
            };
            out.push_str(&piece);
        }
        Ok(out)
    }

    fn directive(self, directive: char) -> Option<Field> {
        let month = MONTHS[usize::from(self.month - 1)];
        let day = DAYS[self.weekday()];
        let hour12 = match self.hour % 12 {
            0 => 12,
            hour => hour,
        };
        let two = |value: u8| Field::Number(u32::from(value), Pad::Zeros(2));
        let text = |text: &str| Field::Text(text.to_owned());
        let nested = |format: &str| self.format(format).ok().map(Field::Text);
        Some(match directive {
            'Y' => Field::Number(u32::from(self.year), Pad::Zeros(1)),
            'y' => Field::Number(u32::from(self.year % 100), Pad::Zeros(2)),
            'm' => two(self.month),
            'd' => two(self.day),
            'e' => Field::Number(u32::from(self.day), Pad::Spaces(2)),
            'H' => two(self.hour),
            'I' => two(hour12),
            'M' => two(self.minute),
            'S' => two(self.second),
            'f' => text("000000"),
            'j' => Field::Number(self.day_of_year(), Pad::Zeros(3)),
            'w' => Field::Number(self.weekday() as u32, Pad::Zeros(1)),
            'u' => Field::Number((self.weekday() as u32 + 6) % 7 + 1, Pad::Zeros(1)),
            'p' => text(if self.hour < 12 { "AM" } else { "PM" }),
            'A' => text(day),
            'a' => text(&day[..3]),
            'B' => text(month),
            'b' | 'h' => text(&month[..3]),
            // Like Python's `datetime.now()`, the time has no zone.
            'Z' | 'z' => text(""),
            'F' => return nested("%Y-%m-%d"),
            'T' | 'X' => return nested("%H:%M:%S"),
            'R' => return nested("%H:%M"),
            'D' | 'x' => return nested("%m/%d/%y"),
            'c' => return nested("%a %b %e %H:%M:%S %Y"),
            'n' => text("\n"),
            't' => text("\t"),
            '%' => text("%"),
            _ => return None,
        })
    }
}

enum Field {
    Text(String),
    Number(u32, Pad),
}

enum Pad {
    Zeros(usize),
    Spaces(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values from Python's `datetime.strftime`.
    #[test]
    fn formats_match_python() {
        let time =
            |year, month, day, hour, minute, second| DateTime { year, month, day, hour, minute, second };
        let all = "%Y %y %m %-m %d %-d %e %H %-H %I %-I %M %S %j %w %u %p %A %a %B %b %F %T %R %D %c %%";
        let cases = [
            (
                time(2024, 2, 29, 0, 5, 9),
                "2024 24 02 2 29 29 29 00 0 12 12 05 09 060 4 4 AM Thursday Thu February Feb 2024-02-29 00:05:09 \
                 00:05 02/29/24 Thu Feb 29 00:05:09 2024 %",
            ),
            (
                time(1999, 12, 5, 13, 0, 59),
                "1999 99 12 12 05 5  5 13 13 01 1 00 59 339 0 7 PM Sunday Sun December Dec 1999-12-05 13:00:59 13:00 \
                 12/05/99 Sun Dec  5 13:00:59 1999 %",
            ),
            (
                time(2100, 3, 1, 12, 30, 0),
                "2100 00 03 3 01 1  1 12 12 12 12 30 00 060 1 1 PM Monday Mon March Mar 2100-03-01 12:30:00 12:30 \
                 03/01/00 Mon Mar  1 12:30:00 2100 %",
            ),
        ];
        for (time, expected) in cases {
            assert_eq!(time.format(all).unwrap(), expected, "{time:?}");
        }
    }

    #[test]
    fn invalid_formats_and_dates_are_errors() {
        let day = DateTime::date(2024, 1, 1).unwrap();
        assert!(day.format("%Q").unwrap_err().to_string().contains("%Q is not supported"));
        assert!(day.format("100%").unwrap_err().to_string().contains("incomplete directive"));
        assert!(DateTime { month: 13, ..day }.format("%Y").is_err());
        assert!(DateTime { day: 0, ..day }.format("%Y").is_err());
    }
}
