//! Ranges of versions that were tested.

use std::fmt;

/// Major and minor version.
type Release = (u32, u32);

/// Versions of a package that were tested, or whose protocol is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TestedVersions {
    /// The package.
    pub package: &'static str,
    first: Release,
    last: Release,
}

impl TestedVersions {
    pub(crate) const fn new(package: &'static str, first: Release, last: Release) -> Self {
        Self { package, first, last }
    }

    /// True if a version is one of them.
    pub fn contains(&self, version: &str) -> bool {
        release(version).is_some_and(|release| (self.first..=self.last).contains(&release))
    }
}

/// The release of a version such as `2.13.0+cpu`.
pub(super) fn release(version: &str) -> Option<Release> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

impl fmt::Display for TestedVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.first;
        write!(f, "{major}.{minor}")?;
        if self.first != self.last {
            let (major, minor) = self.last;
            write!(f, " to {major}.{minor}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_both_ends_and_no_more() {
        let range = TestedVersions::new("vllm", (0, 32), (0, 33));
        assert_eq!(range.to_string(), "0.32 to 0.33");
        for (version, expected) in [
            ("0.32.0+cpu", true),
            ("0.33.1", true),
            ("0.31.9", false),
            ("0.34.0", false),
            ("1.32", false),
            ("x", false),
        ] {
            assert_eq!(range.contains(version), expected, "{version}");
        }
    }
}
