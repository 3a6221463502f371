use rloom_core::PromptSource;
use rloom_function::{FunctionError, Peer, Pool, Role, Session};
use serde_json::json;

use crate::support::{LONG, limits, script};

/// Counts the turns of all its episodes; `crash` ends the process, `bye` the episode.
const COUNT: &str = r#"n=$((n+1))
  case "$line" in
    *'"end"'*) echo '{"id":'$id'}';;
    *crash*) echo fell >&2; exit 4;;
    *bye*) echo '{"id":'$id',"done":{},"step_reward":1}';;
    *) echo '{"id":'$id',"ask":{"messages":"'$n'","state":"s"},"step_reward":0.5}';;
  esac"#;

fn pool(workers: usize) -> Pool {
    Pool::new(Peer::command(&script(COUNT), Role::Environment), limits(workers, LONG))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn episodes_stay_in_their_process() {
    let pool = pool(2);
    block_on(async {
        let (first, ask) = Session::begin(&pool, "a".into(), json!({})).await.unwrap();
        assert_eq!((ask.messages, ask.state.as_deref()), (PromptSource::Text("1".into()), Some("s")));
        let (second, ask) = Session::begin(&pool, "b".into(), json!({})).await.unwrap();
        // Another process: it counts from one, too.
        assert_eq!(ask.messages, PromptSource::Text("1".into()));
        let answer = first.act("go", "stop_token", false).await.unwrap();
        assert_eq!(answer.ask.map(|ask| ask.messages), Some(PromptSource::Text("2".into())));
        assert_eq!(answer.reward, Some(0.5));
        let last = second.act("bye", "stop_token", false).await.unwrap();
        assert_eq!((last.ask, last.reward), (None, Some(1.0)));
        drop(second);
        // The first process still plays an episode, so the next one goes to the second.
        let (_third, ask) = Session::begin(&pool, "c".into(), json!({})).await.unwrap();
        assert_eq!(ask.messages, PromptSource::Text("4".into()), "begin, act, end, begin");
    });
}

#[test]
fn a_crash_loses_the_episodes_of_its_process_only() {
    let pool = pool(2);
    block_on(async {
        let mut sessions = Vec::new();
        for name in ["a", "b", "c", "d"] {
            sessions.push(Session::begin(&pool, name.into(), json!({})).await.unwrap().0);
        }
        let error = sessions[0].act("crash", "stop_token", false).await.unwrap_err();
        assert!(matches!(&error, FunctionError::Ended { stderr, .. } if stderr == "fell"), "{error}");
        let mut lost = 0;
        for session in &sessions[1..] {
            match session.act("go", "stop_token", false).await {
                Ok(_) => {}
                Err(FunctionError::EpisodeLost { reason, .. }) => {
                    assert!(reason.contains("status 4"), "{reason}");
                    lost += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(lost, 1);
        drop(sessions);
        assert!(Session::begin(&pool, "e".into(), json!({})).await.is_ok());
    });
}

#[test]
fn an_episode_whose_start_nobody_awaits_is_ended() {
    let pool = pool(1);
    let mut waiting = Box::pin(Session::begin(&pool, "a".into(), json!({})));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    drop(waiting);
    let (session, ask) = block_on(Session::begin(&pool, "b".into(), json!({}))).unwrap();
    // The process began "a", began "b" and ended "a", in the order in which it was told.
    let counted = |n: &str| ask.messages == PromptSource::Text(n.into());
    assert!(counted("2") || counted("3"));
    let answer = block_on(session.act("go", "stop_token", false)).unwrap();
    assert_eq!(answer.ask.map(|ask| ask.messages), Some(PromptSource::Text("4".into())));
}
