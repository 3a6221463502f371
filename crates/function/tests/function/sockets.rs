use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;

use rloom_function::{FunctionError, Judge, Peer, Pool, Role};

use crate::support::{LONG, judge_one, limits};

#[test]
fn callers_serve_their_functions_on_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("caller");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let mut hellos = Vec::new();
        // The first connection breaks after one answer.
        for stop_after in [2, usize::MAX] {
            let (stream, _) = listener.accept().unwrap();
            let mut output = stream.try_clone().unwrap();
            for line in BufReader::new(stream).lines().take(stop_after) {
                let request: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
                let id = &request["id"];
                if request.get("hello").is_some() {
                    hellos.push(request["hello"].clone());
                    writeln!(output, r#"{{"id":{id},"ready":{{"v":1}}}}"#).unwrap();
                } else {
                    writeln!(output, r#"{{"id":{id},"verdicts":[1.5]}}"#).unwrap();
                }
            }
        }
        hellos
    });
    let peer = |path| Peer::socket("score", path, Role::Reward { group: true });
    let judge: Judge = Pool::new(peer(path), limits(1, LONG)).into();
    for _ in 0..3 {
        assert_eq!(judge_one(&judge, "x"), Ok(Some(1.5)));
    }
    drop(judge);
    let hellos = server.join().unwrap();
    assert_eq!(hellos.len(), 2);
    assert_eq!((&hellos[0]["function"], &hellos[0]["group"]), (&"score".into(), &true.into()));
    let absent: Judge = Pool::new(peer(folder.path().join("absent")), limits(1, LONG)).into();
    assert!(matches!(judge_one(&absent, "x"), Err(FunctionError::Connect { .. })));
}
