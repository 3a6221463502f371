//! Lines of bounded length.

use std::io::{self, BufRead, BufReader, Read};

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line, without its end.
    Text(Vec<u8>),
    /// More bytes than the limit without an end of line.
    TooLong,
    /// The end of the input. A line that it cuts off is dropped.
    End,
}

/// Reads lines of at most `limit` bytes.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: BufReader<R>,
    limit: usize,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(input: R, limit: usize) -> Self {
        Self { input: BufReader::with_capacity(1 << 16, input), limit }
    }

    /// Reads the next line.
    pub(crate) fn next(&mut self) -> io::Result<Line> {
        let mut line = Vec::new();
        loop {
            let available = match self.input.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() {
                return Ok(Line::End);
            }
            let end = available.iter().position(|&byte| byte == b'\n');
            let taken = end.unwrap_or(available.len());
            if line.len() + taken > self.limit {
                return Ok(Line::TooLong);
            }
            line.extend_from_slice(&available[..taken]);
            self.input.consume(taken + usize::from(end.is_some()));
            if end.is_some() {
                return Ok(Line::Text(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], limit: usize) -> Vec<Line> {
        let mut lines = Lines::new(text, limit);
        let mut found = Vec::new();
        loop {
            let line = lines.next().unwrap();
            let is_last = !matches!(line, Line::Text(_));
            found.push(line);
            if is_last {
                return found;
            }
        }
    }

    #[test]
    fn lines_are_bounded_and_complete() {
        let text = |text: &str| Line::Text(text.as_bytes().to_vec());
        assert_eq!(lines(b"ab\n\nabcd\n", 4), [text("ab"), text(""), text("abcd"), Line::End]);
        assert_eq!(lines(b"ab\nabcde\n", 4), [text("ab"), Line::TooLong]);
        assert_eq!(lines(b"ab\ncut", 4), [text("ab"), Line::End]);
    }
}
