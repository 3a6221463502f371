//! Groups of stages that learn from rows.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::sync::Arc;
use std::time::Duration;

use rloom_collect::{DemonstrationReader, DemonstrationSource};
use rloom_core::{Group, MARGIN, PREFERENCE, Ticket};
use rloom_data::{Cursor, DataSettings, Dataset, FileSettings, Order, RowKind, Source, Split};
use rloom_env::SingleTurn;
use rloom_hub::Hub;
use rloom_text::{CharacterSettings, Tokenizer};
use serde_json::{Value, json};

fn groups(rows: &[Value], kind: RowKind) -> Vec<Group> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let lines: String = rows.iter().flat_map(|row| [row.to_string(), "\n".to_owned()]).collect();
    std::fs::write(&path, lines).unwrap();
    let settings = DataSettings::from(Source::Files(FileSettings::new(path)));
    let dataset = Dataset::open_kind(&settings, Split::Demonstration, kind, 1, &Hub::from_env()).unwrap();
    let source = DemonstrationSource {
        cursor: Cursor::new(dataset.len(), Order::Sequential, 1, 0).unwrap(),
        dataset,
        reader: DemonstrationReader {
            tokenizer: Arc::new(Tokenizer::characters(&CharacterSettings::new("abcdefg")).unwrap()),
            environment: Arc::new(SingleTurn),
            context: 32,
            timeout: Duration::from_mins(1),
        },
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    (0..rows.len() as u64).map(|ticket| runtime.block_on(source.group(Ticket(ticket))).unwrap()).collect()
}

/// Policy tokens, value of the preference and margin of each episode.
fn episodes(group: &Group) -> Vec<(usize, Option<f64>, Option<f64>)> {
    let of = |episode: &rloom_core::Episode| {
        let components = &episode.rewards.components;
        assert!(components.iter().all(|component| component.name == PREFERENCE && component.weight == 1.0));
        let margin = episode.rewards.metrics.get(MARGIN).copied();
        (episode.policy_tokens(), episode.rewards.total(), margin)
    };
    group.episodes.iter().map(of).collect()
}

#[test]
fn pairs_are_two_episodes_of_which_the_first_is_chosen() {
    let row =
        |margin: Option<f64>| json!({"prompt": "a", "chosen": "bb", "rejected": "cccc", "margin": margin});
    let groups = groups(&[row(Some(0.5)), row(None)], RowKind::Pairs);
    assert_eq!(episodes(&groups[0]), [(3, Some(1.0), Some(0.5)), (5, Some(0.0), None)]);
    assert_eq!(episodes(&groups[1]), [(3, Some(1.0), None), (5, Some(0.0), None)]);
    for (ticket, group) in (0..).zip(&groups) {
        let keys: Vec<_> = group.episodes.iter().map(|episode| episode.segments[0].key).collect();
        assert!(keys.iter().all(|key| key.ticket == Ticket(ticket)));
        assert_eq!([keys[0].sample, keys[1].sample], [0, 1]);
    }
}

#[test]
fn labels_steps_and_demonstrations_are_one_episode() {
    let row = |label: bool| json!({"prompt": "a", "completion": "b", "label": label});
    let labelled = groups(&[row(true), row(false)], RowKind::Labels);
    assert_eq!(episodes(&labelled[0]), [(2, Some(1.0), None)]);
    assert_eq!(episodes(&labelled[1]), [(2, Some(0.0), None)]);
    let demonstrated = groups(&[row(true)], RowKind::Demonstrations);
    assert_eq!(episodes(&demonstrated[0]), [(2, None, None)]);
}
