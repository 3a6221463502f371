//! Text of `rloom algo`.

use rloom_algo::{Algorithm, Method};

#[test]
fn pages_fit_a_terminal() {
    for &method in Method::ALL {
        let text = Algorithm::show(method.name()).unwrap();
        let wide: Vec<_> = text.lines().filter(|l| l.chars().count() > 100).collect();
        assert!(wide.is_empty(), "{method}: {wide:#?}");
    }
}

/// Three examples: all pages are checked in `pages.rs`.
#[test]
fn pages_without_their_marks() {
    for method in [Method::Grpo, Method::Ppo, Method::Sft] {
        insta::assert_snapshot!(format!("show_{method}"), Algorithm::show(method.name()).unwrap());
    }
}

#[test]
fn every_method_is_listed_with_its_paper() {
    for info in Algorithm::list() {
        assert!(info.paper.contains(", arXiv "), "{}", info.method);
        assert!(!info.summary.is_empty() && !info.summary.ends_with('.'));
    }
    assert!(Algorithm::show("ppo2").is_err());
}
