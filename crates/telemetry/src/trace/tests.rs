use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::*;
use crate::synthetic::{SyntheticRun, resumed, run};

fn settings(max_staleness: u64) -> SyntheticRun {
    SyntheticRun { max_staleness, steps: 40, groups: 8, samples: 0 }
}

fn trace_of(lines: &[EventLine]) -> Vec<Value> {
    let mut out = Vec::new();
    let count = write(lines, &mut out).unwrap();
    let whole: Value = serde_json::from_slice(&out).unwrap();
    let events = whole["traceEvents"].as_array().unwrap().clone();
    assert_eq!(events.len(), count);
    events
}

fn of_phase<'a>(events: &'a [Value], ph: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["ph"] == ph).collect()
}

/// Checks the requirements of the format.
fn check(events: &[Value]) {
    let mut before = 0;
    let mut open: HashMap<String, u64> = HashMap::new();
    let mut closed: HashMap<String, u64> = HashMap::new();
    let mut threads: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    let named: Vec<(u64, u64)> = of_phase(events, "M")
        .iter()
        .filter(|e| e["name"] == "thread_name")
        .map(|e| (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap()))
        .collect();
    for event in events {
        let ts = event["ts"].as_u64().unwrap();
        assert!(ts >= before, "{event} is out of order");
        before = ts;
        let place = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let id = || format!("{} {}", event["cat"], event["id"].as_str().unwrap());
        match event["ph"].as_str().unwrap() {
            "X" => {
                assert!(named.contains(&place), "{event} is on an unnamed thread");
                threads.entry(place).or_default().push((ts, ts + event["dur"].as_u64().unwrap()));
            }
            "b" => assert_eq!(open.insert(id(), ts), None, "{event} is duplicated"),
            "e" => {
                assert!(open[&id()] <= ts);
                assert_eq!(closed.insert(id(), ts), None, "{event} is duplicated");
            }
            "C" => assert!(event["args"].as_object().unwrap().values().all(Value::is_number), "{event}"),
            "i" => assert_eq!(event["s"], "p"),
            "M" => assert_eq!(ts, 0),
            other => panic!("phase {other}"),
        }
    }
    assert_eq!(open.len(), closed.len());
    for (thread, spans) in threads {
        // Spans of a thread do not overlap.
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{thread:?}");
    }
}

#[test]
fn the_trace_follows_the_format() {
    for max_staleness in [0, 2] {
        let events = trace_of(&run(settings(max_staleness)));
        check(&events);
        assert_eq!((of_phase(&events, "b").len(), of_phase(&events, "e").len()), (320, 320));
        let trained = of_phase(&events, "X").into_iter().filter(|e| e["name"] == "train");
        let batches: Vec<u64> = trained.map(|e| e["args"]["version"].as_u64().unwrap()).collect();
        assert_eq!(batches, (0..40).collect::<Vec<_>>());
        let tickets = of_phase(&events, "b").into_iter().map(|e| {
            assert_eq!(e["args"]["stage"], "rl");
            e["args"]["ticket"].as_u64().unwrap()
        });
        assert_eq!(tickets.collect::<BTreeSet<_>>(), (0..320).collect());
        assert_eq!(of_phase(&events, "i").len(), 5, "four evaluations and a checkpoint");
        let in_flight = of_phase(&events, "C").into_iter().filter(|e| e["name"] == "groups in flight");
        let groups: Vec<i64> = in_flight.map(|e| e["args"]["groups"].as_i64().unwrap()).collect();
        assert_eq!((groups.iter().max(), groups.iter().min(), groups.last()), (Some(&8), Some(&0), Some(&0)));
    }
}

#[test]
fn attempts_are_concatenated() {
    let lines = resumed(settings(1));
    let events = trace_of(&lines);
    check(&events);
    let times = |pid: u64| {
        let own = events.iter().filter(move |e| e["pid"] == pid && e["ph"] != "M");
        own.map(|e| e["ts"].as_u64().unwrap() + e["dur"].as_u64().unwrap_or(0))
    };
    assert!(times(1).max().unwrap() <= times(2).min().unwrap());
    let titles: Vec<&str> = of_phase(&events, "M")
        .into_iter()
        .filter(|e| e["name"] == "process_name")
        .map(|e| e["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(titles, ["synthetic, staleness 1 attempt 1", "synthetic, staleness 1 attempt 2"]);
}

#[test]
fn overlapping_work_has_separate_threads_and_a_deferred_group_separate_ids() {
    let mut lines = run(settings(0));
    let activity = |activity, start, end, ticket| EventLine {
        event: Event::Activity { lane: Lane::Train, activity, start, end, version: 3, ticket },
        ..lines.last().unwrap().clone()
    };
    let more = [
        activity(Activity::Evaluate, 5.0, 9.0, None),
        activity(Activity::Checkpoint, 8.0, 10.0, None),
        activity(Activity::Group, 5.0, 5.0, Some(0)),
    ];
    lines.extend(more);
    let events = trace_of(&lines);
    check(&events);
    let names: Vec<&str> = of_phase(&events, "M")
        .into_iter()
        .filter(|e| e["name"] == "thread_name")
        .map(|e| e["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["stages", "rollout", "rollout 2", "rollout waits", "train", "train 2", "train 3", "train waits"],
        "rows in display order"
    );
    let ids: Vec<&str> = of_phase(&events, "b").iter().map(|e| e["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"1/rl/0/1") && ids.contains(&"1/rl/0/2"));
}
