//! The text that users see.

use rloom_algo::{Algorithm, Method};

#[test]
fn pages() {
    for method in Method::ALL {
        let text = Algorithm::show(method.name()).unwrap();
        assert!(text.is_ascii() && text.lines().all(|l| l.chars().count() <= 100), "{text}");
        insta::assert_snapshot!(format!("show_{method}"), text);
    }
}

/// A knob that is on appears in the equation.
#[test]
fn overrides_change_the_equation() {
    let describe =
        |method, json| Algorithm::resolve(method, &serde_json::from_str(json).unwrap()).unwrap().describe();
    let text = describe(
        Method::Grpo,
        r#"{"dual_clip":3,"entropy_coef":0.01,"whiten":true,"kl":{"coef":0.1},"loss_aggregation":"token_mean"}"#,
    );
    for part in [
        "where A < 0: min(l_t, -dual_clip A)",
        "- entropy_coef H_t",
        "variance, 1e-8",
        "exp(ref_t - lp_t)",
        "token_mean: sum",
    ] {
        assert!(text.contains(part), "{part} is missing from {text}");
    }
    let text = describe(Method::Grpo, r#"{"kl":{"coef":0.1,"estimator":"k1"}}"#);
    assert!(text.contains("R is the reward - kl.coef"), "{text}");
}

#[test]
fn every_method_is_listed_with_its_paper() {
    for info in Algorithm::list() {
        assert!(info.paper.contains("arXiv 2"), "{}", info.method);
        assert!(!info.summary.is_empty() && !info.summary.ends_with('.'));
    }
    assert!(Algorithm::show("ppo2").is_err());
}
