//! Tools of several sources together.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rloom_tools::{Output, Toolbox};
use serde_json::json;

use crate::support::{LONG, block_on, call, python, settings};

#[test]
fn each_tool_is_called_at_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = folder.path().join("corpus.jsonl");
    std::fs::write(&corpus, "{\"text\": \"2*3 is a product.\"}\n").unwrap();
    let sources = [json!({"kind": "calculator"}), json!({"kind": "search", "corpus": corpus})].map(settings);
    let toolbox = Toolbox::new(&sources, LONG).unwrap();
    let names: Vec<&str> = toolbox.tools().iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["calculator", "search"]);
    let tools = toolbox.open();
    let calculate =
        |expression: &str| call(&tools, "calculator", &json!({"expression": expression})).unwrap();
    assert_eq!(calculate("2*3"), Output::ok("6"));
    assert_eq!(calculate("+2*+3"), Output::ok("6"));
    assert_eq!(calculate("2*"), Output::error("error: a number was expected"));
    assert_eq!(
        call(&tools, "search", &json!({"query": "product"})).unwrap(),
        Output::ok("2*3 is a product.")
    );
    assert_eq!(call(&tools, "over", &json!({})).unwrap(), Output::error("there is no tool `over`"));
    let twice = Toolbox::new(&[sources[0].clone(), sources[0].clone()], LONG).unwrap_err();
    assert_eq!(twice.to_string(), "two tools have the name `calculator`");
}

/// Two processes serve three calls: two run at the same time, the third waits for one of them. Which two run first is
/// not defined: each call has a thread of its own.
#[test]
fn as_many_calls_run_as_there_are_processes() {
    let folder = tempfile::tempdir().unwrap();
    let file = python(
        folder.path(),
        "tools.py",
        "import os, time\nfrom pathlib import Path\nHERE = Path(__file__).parent\n\
         def meet(name: str) -> str:\n    (HERE / name).touch()\n    while len(list(HERE.glob('m*'))) < 2:\n        time.sleep(0.01)\n    \
         return str(os.getpid())\n",
    );
    let table = json!({"kind": "function", "function": format!("{}:meet", file.display()), "workers": 2});
    let toolbox = Toolbox::new(&[settings(table)], LONG).unwrap();
    let tools = toolbox.open();
    let results = block_on(async {
        let calls = ["m1", "m2", "m3"].map(|name| {
            let arguments = json!({"name": name}).as_object().cloned().unwrap();
            tools.call("meet", arguments)
        });
        let mut results = Vec::new();
        for call in calls {
            results.push(call.await.unwrap().text);
        }
        results
    });
    // The first call that runs returns only once another process has begun a second one.
    let processes: BTreeSet<&String> = results.iter().collect();
    assert_eq!(processes.len(), 2, "{results:?}");
}

/// The call that runs longest is named, until it ends.
#[test]
fn calls_that_run_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let file = python(
        folder.path(),
        "tools.py",
        "import time\nfrom pathlib import Path\n\
         def wait() -> str:\n    while not (Path(__file__).parent / 'go').exists():\n        time.sleep(0.01)\n    return 'done'\n\
         def again() -> str:\n    return 'again'\n\
         TOOLS = [wait, again]\n",
    );
    let table = json!({"kind": "function", "function": format!("{}:TOOLS", file.display()), "workers": 1});
    let toolbox = Toolbox::new(&[settings(table)], LONG).unwrap();
    assert_eq!(toolbox.longest(), None);
    let begun = Instant::now();
    let tools = toolbox.open();
    let output = block_on(async {
        let running = tools.call("wait", serde_json::Map::new());
        let (name, time) = toolbox.longest().unwrap();
        assert!(name == "wait" && time <= begun.elapsed() + Duration::from_millis(1), "{name} {time:?}");
        // A later one, which waits for the process of the first, runs for less time.
        let later = tools.call("again", serde_json::Map::new());
        assert_eq!(toolbox.longest().unwrap().0, "wait");
        std::fs::write(folder.path().join("go"), "").unwrap();
        assert_eq!(later.await.unwrap(), Output::ok("again"));
        running.await.unwrap()
    });
    assert_eq!(output, Output::ok("done"));
    assert_eq!(toolbox.longest(), None);
}
