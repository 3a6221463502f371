//! Versions of the SDK that the API was tested with.

use crate::problem::Problem;

/// A version of three numbers.
type Version = (u32, u32, u32);

/// First tested version.
pub(crate) const FIRST: Version = (0, 36, 0);
/// Last tested version.
pub(crate) const LAST: Version = (0, 38, 0);

/// Refuses a version outside of the tested range: the wire changes between versions, and a misread request would train on
/// something else.
pub(crate) fn check(version: &str) -> Result<(), Problem> {
    match parse(version) {
        Some(version) if (FIRST..=LAST).contains(&version) => Ok(()),
        _ => {
            let range =
                if FIRST == LAST { text(FIRST) } else { format!("{} to {}", text(FIRST), text(LAST)) };
            let given: String = version.chars().take(40).collect();
            Err(Problem::invalid(format!(
                "version `{given}` of the SDK was not tested with this server: install `tinker` {range}"
            )))
        }
    }
}

fn parse(version: &str) -> Option<Version> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    let version = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(version)
}

fn text((major, minor, patch): Version) -> String {
    format!("{major}.{minor}.{patch}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tested_versions_are_served() {
        for good in [text(FIRST), "0.37.2".to_owned(), text(LAST)] {
            assert!(check(&good).is_ok(), "{good}");
        }
        for bad in [
            "0.18.0",
            "0.35.9",
            "0.38.1",
            "0.99.0",
            "1.38.0",
            "0.38",
            "0.38.0.1",
            "0.38.0rc1",
            "",
            "latest",
            "0.-1.0",
        ] {
            let problem = check(bad).unwrap_err();
            assert!(problem.message.contains(&text(LAST)), "{}", problem.message);
        }
    }
}
