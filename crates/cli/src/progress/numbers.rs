//! Numbers and texts as people read them.

use std::fmt::Write as _;

use rloom_core::metric;
use rloom_telemetry::Metrics;

/// `12 ms`, `1.2 s`, `45 s`, `3 m 05 s`, `2 h 10 m`.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        _ if seconds < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} m {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} m", whole / 3600, whole % 3600 / 60),
    }
}

/// `512 B`, `1.4 MiB`, `23 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 || unit == "GiB" {
            return if unit == "B" || value >= 10.0 {
                format!("{value:.0} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    String::new()
}

/// `940`, `12.3 k`, `494 M`: parameters and tokens.
pub(crate) fn count(number: u64) -> String {
    let value = number as f64;
    let (scaled, unit) = match number {
        0..10_000 => return thousands(number),
        10_000..1_000_000 => (value / 1e3, "k"),
        1_000_000..1_000_000_000 => (value / 1e6, "M"),
        _ => (value / 1e9, "G"),
    };
    if scaled < 100.0 { format!("{scaled:.1} {unit}") } else { format!("{scaled:.0} {unit}") }
}

/// `12,345`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `51.2 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Characters of a bar that is full.
pub(crate) const BAR: usize = 20;
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// A share as a bar.
pub(crate) fn bar(share: f64) -> String {
    let eighths = (share.clamp(0.0, 1.0) * BAR as f64 * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// `age 1.2, oldest 2`: how old the tokens of a batch were, in versions; nothing where all were fresh.
pub(crate) fn age(metrics: &Metrics) -> Option<String> {
    let oldest = metrics.get(metric::STALENESS_MAX).filter(|oldest| **oldest > 0.0)?;
    let mean = metrics.get(metric::STALENESS_MEAN)?;
    Some(format!("age {mean:.1}, oldest {oldest}"))
}

/// A model's text for a terminal, which would obey control characters: they are replaced.
pub(crate) fn safe(text: &str) -> String {
    text.chars().map(harmless).collect()
}

fn harmless(c: char) -> char {
    if c.is_control() && !matches!(c, '\n' | '\t') { char::REPLACEMENT_CHARACTER } else { c }
}

/// A model's text, made safe to show: control characters, which a terminal would obey, are replaced, and what is
/// beyond `most` characters is left out.
pub(crate) fn excerpt(text: &str, most: usize) -> String {
    let mut out: String = text.chars().take(most).map(harmless).collect();
    let more = text.chars().count().saturating_sub(most);
    if more > 0 {
        let _ = write!(out, "… (+{more} characters)");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [0.04, 9.96, 59.6, 65.0, 7300.0].map(duration),
            ["40 ms", "10 s", "1 m 00 s", "1 m 05 s", "2 h 01 m"]
        );
        assert_eq!([12, 1500, 3 << 20, 40 << 30].map(bytes), ["12 B", "1.5 KiB", "3.0 MiB", "40 GiB"]);
        assert_eq!(
            [7, 9999, 12_345, 719_000, 494_000_000].map(count),
            ["7", "9,999", "12.3 k", "719 k", "494 M"]
        );
        assert_eq!(percent(0.5123), "51.2 %");
    }

    #[test]
    fn a_completion_cannot_command_the_terminal() {
        assert_eq!(excerpt("a\x1b[2Jb\nc", 100), "a\u{fffd}[2Jb\nc");
        assert_eq!(safe("\u{9b}2J\tx\r"), "\u{fffd}2J\tx\u{fffd}");
        assert_eq!(excerpt("abcdef", 3), "abc… (+3 characters)");
    }
}
