//! Verifiers return correct verdicts in bounded time for any text.

use proptest::prelude::*;
use rloom_reward::Extract;
use rloom_reward::math::{Judgement, Reference};

/// Texts that have made verifiers hang or crash.
fn hostile() -> Vec<String> {
    let many = |part: &str, times: usize| part.repeat(times);
    let mut texts = vec![
        "9^9^9^9^9^9^9^9".to_owned(),
        "10^{10^{10^{10}}}".into(),
        "(10^{1000})^{1000}".into(),
        "1e999999999999999999999999".into(),
        "99999999999!".into(),
        "((((300!)!)!)!)!".into(),
        "\\binom{99999999}{49999999}".into(),
        "\\sqrt[99999999]{2}".into(),
        "\\sqrt[1000]{2^{2000}}".into(),
        "\\log_{1.0000001} 10^{300}".into(),
        "0^{-1}".into(),
        "0/0".into(),
        "\\infty - \\infty".into(),
        "\\frac{\\frac{\\frac{".into(),
        "\\text{".into(),
        "\\".into(),
        "{,}".into(),
        "1{,}".into(),
        "\\overline{3}".into(),
        "0.\\overline{}".into(),
        "\\begin{pmatrix}".into(),
        "\\begin{pmatrix}\\end{pmatrix}".into(),
        "\\sqrt[".into(),
        "\\sqrt[3".into(),
        "x_{".into(),
        "^^^".into(),
        "^".into(),
        "5^".into(),
        "\u{0}\u{202e}\u{feff}".into(),
        "٣٤".into(),
        "１８".into(),
    ];
    for (part, times) in [
        ("(", 999),
        ("[", 999),
        ("{", 999),
        ("\\{", 499),
        ("|", 999),
        ("-", 999),
        ("1-", 499),
        ("1,", 499),
        ("1/", 499),
        ("\\frac", 199),
        ("\\frac1", 166),
        ("\\sqrt", 199),
        ("\\sqrt{", 166),
        ("x^", 499),
        ("x", 999),
        ("9", 999),
        ("9!", 499),
        ("300!", 249),
        ("\\binom{9999}{99}", 62),
        ("(1/3)^{999}+", 83),
        ("\\pm1", 249),
        ("=1", 499),
        ("<1", 499),
        ("\\cup", 249),
        ("\\text{a", 142),
        ("\\begin{pmatrix}", 66),
        ("$", 999),
        ("\\boxed{", 142),
        ("answer is ", 99),
    ] {
        texts.push(many(part, times));
        texts.push(format!("{}1", many(part, times)));
    }
    for (open, close, times) in [
        ("(", ")", 400),
        ("\\{", "\\}", 240),
        ("\\frac{1}{", "}", 80),
        ("|", "|", 400),
        ("\\sqrt{", "}", 120),
    ] {
        texts.push(format!("{}1{}", many(open, times), many(close, times)));
    }
    texts
}

#[test]
fn hostile_texts_are_judged_in_bounded_time_and_never_equal() {
    let references = ["18", "x+1", "\\{1, 2\\}", "\\sqrt{2}", "x = 5", "\\text{yes}"].map(Reference::read);
    for text in hostile() {
        for reference in &references {
            assert_ne!(reference.judge(&text, 0.0), Judgement::Same, "{text}");
            reference.judge_number(&text, 0.0);
        }
        // As a reference, too: a dataset may contain any text.
        let own = Reference::read(&text);
        own.judge("18", 0.0);
        own.judge(&text, 0.0);
    }
}

#[test]
fn long_completions_are_searched_in_linear_time() {
    for part in [
        "answer ",
        "answer is ",
        "\\boxed{",
        "#### ",
        "<answer>",
        "</answer>",
        "1",
        ",",
        "-",
        "{",
        "\\",
        "answer is\n",
        "\\boxed{1} and ",
        "\\boxed{\\boxed{1} and ",
        "$",
        "$1$ ",
        "\\(",
        "\\)",
        "<think>",
        "</think>",
    ] {
        let text = part.repeat(2_000_000 / part.len());
        for place in [
            Extract::Whole,
            Extract::Hashes,
            Extract::Boxed,
            Extract::AnswerTag,
            Extract::AnswerIs,
            Extract::Formula,
            Extract::LastNumber,
        ] {
            if let Some(found) = place.find(&text) {
                Reference::read("18").judge(found, 0.0);
            }
        }
    }
}

/// Well-formed expressions.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        (0u32..100_000).prop_map(|n| n.to_string()),
        (1u32..1000, 1u32..1000).prop_map(|(a, b)| format!("{a}.{b}")),
        Just("x".to_owned()),
        Just("\\pi".to_owned()),
        (1u32..100, 1u32..100).prop_map(|(a, b)| format!("\\frac{{{a}}}{{{b}}}")),
    ];
    leaf.prop_recursive(4, 24, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}+{b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} - {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a} \\cdot {b}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("\\frac{{{a}}}{{{b}}}")),
            inner.clone().prop_map(|a| format!("({a})^2")),
            inner.clone().prop_map(|a| format!("\\sqrt{{{a}}}")),
            inner.prop_map(|a| format!("-({a})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_judged(reference in "\\PC{0,40}", candidate in "\\PC{0,60}") {
        let reference = Reference::read(&reference);
        reference.judge(&candidate, 0.0);
        reference.judge_number(&candidate, 0.0);
    }

    #[test]
    fn any_sequence_of_symbols_is_judged(
        signs in prop::collection::vec(
            prop::sample::select(vec![
                "1", "23", "0.5", "x", "e", "i", "+", "-", "*", "/", "^", "_", "(", ")", "[", "]", "{", "}", "\\{", "\\}", ",", " ", "=",
                "<", "|", "!", "%", "$", "\\frac", "\\sqrt", "\\pi", "\\pm", "\\text{cm}", "\\left", "\\right", "\\cup", "\\infty", "\\log",
                "\\sin", "\\binom", "\\overline{3}", "and", "km", "million", "percent", "\\\\", "&", "\\begin{matrix}", "\\end{matrix}",
            ]),
            0..40,
        )
    ) {
        let text = signs.concat();
        Reference::read("18").judge(&text, 0.0);
        Reference::read(&text).judge(&text, 0.0);
    }

    #[test]
    fn expressions_equal_themselves_and_no_others(text in expression()) {
        let reference = Reference::read(&text);
        prop_assert_eq!(reference.judge(&text, 0.0), Judgement::Same, "{}", text);
        prop_assert_eq!(reference.judge(&format!("${text}$"), 0.0), Judgement::Same, "{}", text);
        // A number that differs by more than the rounding error, for any first number.
        let other = format!("{text} + |{text}| + 1");
        prop_assert_ne!(reference.judge(&other, 0.0), Judgement::Same, "{}", text);
    }

    #[test]
    fn numbers_equal_themselves_and_no_others(a in -2_000_000i64..2_000_000, b in -2_000_000i64..2_000_000, d in 1i64..50) {
        let same = Judgement::Same;
        prop_assert_eq!(Reference::read(&a.to_string()).judge(&b.to_string(), 0.0) == same, a == b);
        let (left, right) = (format!("{a}/{d}"), format!("\\frac{{{}}}{{{}}}", b * 3, d * 3));
        prop_assert_eq!(Reference::read(&left).judge(&right, 0.0) == same, a == b);
        let decimal = format!("{}{}.{:02}", if a < 0 { "-" } else { "" }, a.abs() / 100, a.abs() % 100);
        prop_assert_eq!(Reference::read(&decimal).judge(&format!("{b}/100"), 0.0) == same, a == b);
    }
}
