//! Methods in Python, whose losses the ranks back-propagate.

use std::collections::BTreeMap;

use rloom_model::StoredTensors;
use rloom_telemetry::Event;

use super::run::{Run, succeeded};

const GUIDE: &str = include_str!("../../../../../docs/guides/python.md");

/// Several optimiser steps per batch, so that ratios differ from 1 and some are clipped.
const OVERRIDES: [&str; 3] =
    ["stage.rl.steps=2", "stage.rl.algorithm.epochs=4", "stage.rl.trainer.learning_rate=0.1"];
/// The guide's loss does not correct for the noise of a sampler.
const BUILT_IN: &str = "stage.rl.algorithm.correction.level=none";

/// A filter that notes its calls.
const FILTER: &str = "
import os

def keep(rewards):
    with open(os.path.join(os.path.dirname(__file__), 'calls'), 'a') as calls:
        print(len(rewards), file=calls)
    return True
";

/// Tensors of a run's result, with functions of a file or without.
fn weights(run: &Run, source: Option<&str>) -> BTreeMap<String, Vec<f32>> {
    let mut arguments = vec!["train", "gang.toml", "--quiet"];
    for setting in OVERRIDES {
        arguments.extend(["--set", setting]);
    }
    let functions = [("advantage", "advantage"), ("loss", "loss"), ("filter", "keep")].map(|(part, name)| {
        let kind = if part == "filter" { "" } else { "kind='python'," };
        format!("stage.rl.algorithm.{part}={{{kind}function='method.py:{name}'}}")
    });
    if let Some(source) = source {
        run.sandbox.write("method.py", &format!("{source}{FILTER}"));
        for function in &functions {
            arguments.extend(["--set", function]);
        }
    } else {
        arguments.extend(["--set", BUILT_IN]);
    }
    succeeded(&run.finish(run.start(&arguments)));
    run.check_ended();
    let tensors = StoredTensors::open(&run.sandbox.path("runs/gang/checkpoints/latest")).unwrap();
    tensors.names().map(|name| (name.to_owned(), tensors.read(name).unwrap())).collect()
}

/// The method of the guide trains on two ranks to the weights of the built-in one, up to rounding: PyTorch's scores with and
/// without gradients differ in their last bits.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_method_in_python_trains_ranks_to_the_weights_of_grpo() {
    let blocks = GUIDE.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next());
    let example = blocks.into_iter().find(|block| block.contains("def loss(")).unwrap();
    let (built_in, python) = (Run::new("built-in"), Run::new("python"));
    let expected = weights(&built_in, None);
    for bound in ["clip_ratio/low", "clip_ratio/high"] {
        let is_clipped = |event: &Event| matches!(event, Event::Step { metrics } if metrics[bound] > 0.0);
        assert!(built_in.count(is_clipped) > 0, "{bound} is 0");
    }
    let found = weights(&python, Some(example));
    assert!(found.keys().eq(expected.keys()));
    let pairs = || found.values().flatten().zip(expected.values().flatten());
    let norm = |sum: f64| sum.sqrt();
    let difference = norm(pairs().map(|(a, b)| f64::from(a - b).powi(2)).sum());
    let size = norm(pairs().map(|(_, b)| f64::from(*b).powi(2)).sum());
    println!("difference {difference:.1e} of {size:.1e}");
    assert!(difference < 1e-4 * size, "{difference} of {size}");
    // Two groups of four completions in each of two batches.
    assert_eq!(std::fs::read_to_string(python.sandbox.path("calls")).unwrap(), "4\n".repeat(4));
}
