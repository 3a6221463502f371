//! The table of expected verdicts (`tests/golden/answers.txt`, checked with sympy by `check_answers.py`).

use rloom_reward::math::{Judgement, Reference};

#[test]
fn verdicts_match_the_table() {
    let table = include_str!("../golden/answers.txt");
    let mut wrong = Vec::new();
    let mut cases = 0;
    for line in table.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let fields: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let (reference, candidate, verdict) = match fields.as_slice() {
            [reference, candidate, verdict, ..] => (*reference, *candidate, *verdict),
            // An empty candidate.
            [reference, rest] => (*reference, "", rest.trim_start_matches(['|', ' '])),
            _ => panic!("{line}"),
        };
        let expected = match verdict {
            "same" => Judgement::Same,
            "different" => Judgement::Different,
            "unreadable" => Judgement::Unreadable,
            other => panic!("{line}: unknown verdict {other}"),
        };
        cases += 1;
        let found = Reference::read(reference).judge(candidate, 0.0);
        if found != expected {
            wrong.push(format!("{reference}  vs  {candidate}: {found:?}, expected {expected:?}"));
        }
    }
    assert!(cases >= 150, "only {cases} cases");
    assert!(wrong.is_empty(), "{} of {cases} verdicts:\n{}", wrong.len(), wrong.join("\n"));
}
