//! Formats numbers and text for display.

use std::fmt::Write as _;

use rloom_core::metric;
use rloom_telemetry::Metrics;

/// Formats a duration: `12 ms`, `1.2 s`, `45 s`, `3 m 05 s`, `2 h 10 m`.
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

/// Formats a size: `512 B`, `1.4 MiB`, `23 GiB`.
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

/// Formats a number of parameters or tokens: `940`, `12.3 k`, `494 M`.
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

/// Formats with thousands separators: `12,345`.
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

/// Formats a fraction: `51.2 %`.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// Width of a full bar in characters.
pub(crate) const BAR: usize = 20;
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// Formats a fraction as a bar.
pub(crate) fn bar(fraction: f64) -> String {
    bar_of(fraction, BAR)
}

/// Formats a fraction as a bar that has `width` characters when full.
pub(crate) fn bar_of(fraction: f64, width: usize) -> String {
    let eighths = (fraction.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// Formats the age of a batch's tokens in versions: `age 1.2, oldest 2`. `None` if all were fresh.
pub(crate) fn age(metrics: &Metrics) -> Option<String> {
    let oldest = metrics.get(metric::STALENESS_MAX).filter(|oldest| **oldest > 0.0)?;
    let mean = metrics.get(metric::STALENESS_MEAN)?;
    Some(format!("age {mean:.1}, oldest {oldest}"))
}

/// Replaces control characters, which a terminal would interpret.
pub(crate) fn sanitize(text: &str) -> String {
    text.chars().map(sanitize_char).collect()
}

fn sanitize_char(c: char) -> char {
    if c.is_control() && !matches!(c, '\n' | '\t') { char::REPLACEMENT_CHARACTER } else { c }
}

/// The first `most` characters of a text, with control characters replaced.
pub(crate) fn excerpt(text: &str, most: usize) -> String {
    let mut out: String = text.chars().take(most).map(sanitize_char).collect();
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
    fn numbers_are_formatted_with_units() {
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
    fn control_characters_are_replaced() {
        assert_eq!(excerpt("a\x1b[2Jb\nc", 100), "a\u{fffd}[2Jb\nc");
        assert_eq!(sanitize("\u{9b}2J\tx\r"), "\u{fffd}2J\tx\u{fffd}");
        assert_eq!(excerpt("abcdef", 3), "abc… (+3 characters)");
    }
}
