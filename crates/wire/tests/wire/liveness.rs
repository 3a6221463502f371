//! Beats, leases, the end of the stream, deadlines and `close`.

use std::time::{Duration, Instant};

use rloom_wire::{Frame, Options, Progress, Tensor, WireError};

use crate::{dial, listener, pair, soon};

/// Sends a single beat.
fn mute() -> Options {
    Options { beat: Duration::from_hours(1), ..Options::default() }
}

fn short_lease() -> Options {
    Options { lease: Duration::from_secs(2), beat: Duration::from_millis(100), ..Options::default() }
}

#[test]
fn beats_carry_phase_and_progress_while_the_application_is_busy() {
    let (connecting, accepting) = pair(short_lease(), short_lease());
    connecting.set_phase("train");
    connecting.set_progress(3, 8);
    let expected = Progress { phase: "train".to_owned(), done: 3, total: 8 };
    while accepting.beat().unwrap().progress != expected {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(expected.to_string(), "in phase `train`, 3 of 8 done");
}

#[test]
fn beats_keep_the_lease() {
    let (connecting, accepting) = pair(short_lease(), short_lease());
    let waited = accepting.receive(Instant::now() + 3 * short_lease().lease).unwrap_err();
    assert!(matches!(waited, WireError::Deadline { operation: "receive", .. }), "{waited}");
    connecting.beat().unwrap();
}

#[test]
fn a_silent_peer_loses_its_lease() {
    let (connecting, accepting) = pair(mute(), short_lease());
    let error = accepting.receive(soon()).unwrap_err();
    assert!(matches!(error, WireError::Lease { .. }), "{error}");
    assert!(
        error.to_string().contains("rank 2 at") && error.to_string().contains("silent for 2 s"),
        "{error}"
    );
    assert!(matches!(accepting.beat(), Err(WireError::Lease { .. })));
    assert!(matches!(accepting.send(&Frame::default(), soon()), Err(WireError::Lease { .. })));
    // Its own end is closed by that.
    let error = connecting.receive(soon()).unwrap_err();
    assert!(matches!(error, WireError::Closed { .. }), "{error}");
}

#[test]
fn the_connecting_end_has_a_lease_too() {
    let (connecting, _accepting) = pair(short_lease(), mute());
    let error = connecting.receive(soon()).unwrap_err();
    assert!(matches!(error, WireError::Lease { .. }), "{error}");
    assert!(error.to_string().contains("controller 0 at"), "{error}");
}

#[test]
fn an_error_names_the_last_phase() {
    let listener = listener(short_lease());
    let connecting = dial(&listener, Options { beat: Duration::from_millis(20), ..Options::default() });
    let accepting = listener.accept(soon()).unwrap();
    connecting.set_phase("save");
    while accepting.beat().unwrap().progress.phase != "save" {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(connecting);
    let error = accepting.receive(soon()).unwrap_err();
    assert!(matches!(error, WireError::Closed { .. }), "{error}");
    assert!(error.to_string().ends_with("closed the connection; it was last in phase `save`"), "{error}");
}

#[test]
fn frames_before_the_end_are_received() {
    let (connecting, accepting) = pair(Options::default(), Options::default());
    for job in 0..100 {
        connecting.send(&Frame::new(1, job, "{}"), soon()).unwrap();
    }
    drop(connecting);
    for job in 0..100 {
        assert_eq!(accepting.receive(soon()).unwrap().job, job);
    }
    assert!(matches!(accepting.receive(soon()), Err(WireError::Closed { .. })));
    assert!(matches!(accepting.receive(soon()), Err(WireError::Closed { .. })), "the error stays");
}

#[test]
fn frames_on_their_way_survive_a_close() {
    let slow = Options { queue_bytes: 1, beat: Duration::from_millis(5), ..Options::default() };
    let patient = Options { lease: Duration::from_mins(2), ..Options::default() };
    let (connecting, accepting) = pair(patient, slow);
    // Two frames fit into the buffers of the system, and not into the receiving one alone.
    let values = Tensor::new("x", &[256 << 10], &vec![1_u8; 256 << 10]);
    let frame = Frame { tensors: vec![values], ..Frame::new(0, 0, "{}") };
    for _ in 0..3 {
        connecting.send(&frame, soon()).unwrap();
    }
    drop(connecting);
    // Beats arrive at the closed end meanwhile.
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..3 {
        assert_eq!(accepting.receive(soon()).unwrap(), frame);
    }
    assert!(matches!(accepting.receive(soon()), Err(WireError::Closed { .. })));
}

#[test]
fn close_wakes_a_blocked_receive() {
    let (connecting, accepting) = pair(Options::default(), Options::default());
    let waiting = connecting.clone();
    let blocked = std::thread::spawn(move || waiting.receive(soon()));
    connecting.close();
    let error = blocked.join().unwrap().unwrap_err();
    assert!(matches!(error, WireError::ClosedHere { .. }), "{error}");
    assert!(matches!(connecting.send(&Frame::default(), soon()), Err(WireError::ClosedHere { .. })));
    assert!(matches!(accepting.receive(soon()), Err(WireError::Closed { .. })));
}

#[test]
fn a_peer_that_does_not_read_ends_a_send() {
    let full = Options { queue_bytes: 1, ..Options::default() };
    let (connecting, accepting) = pair(Options::default(), full);
    let large = Tensor::new("x", &[32 << 20], &vec![1_u8; 32 << 20]);
    let large = Frame { tensors: vec![large], ..Frame::new(0, 0, "{}") };
    // One frame fills the queue of the other end, the next ones the buffers of the system.
    let mut complete = 0;
    let error = loop {
        match connecting.send(&large, Instant::now() + Duration::from_millis(500)) {
            Ok(()) => complete += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, WireError::Deadline { operation: "send", .. }), "{error}");
    let again = connecting.send(&Frame::default(), soon()).unwrap_err();
    assert!(matches!(again, WireError::Deadline { .. }), "a frame was cut: {again}");
    // The complete frames arrive, the one that was cut does not.
    for _ in 0..complete {
        assert_eq!(accepting.receive(soon()).unwrap(), large);
    }
    assert!(matches!(accepting.receive(soon()), Err(WireError::Cut { .. })));
}

#[test]
fn a_full_queue_is_not_silence() {
    let full = Options { queue_bytes: 1, ..short_lease() };
    let (connecting, accepting) = pair(Options { beat: short_lease().beat, ..Options::default() }, full);
    connecting.send(&Frame::new(0, 1, ""), soon()).unwrap();
    connecting.send(&Frame::new(0, 2, ""), soon()).unwrap();
    std::thread::sleep(3 * full.lease);
    assert_eq!(accepting.receive(soon()).unwrap().job, 1);
    assert_eq!(accepting.receive(soon()).unwrap().job, 2);
    accepting.beat().unwrap();
}

#[test]
fn late_frames_are_dropped() {
    let (connecting, accepting) = pair(Options::default(), Options::default());
    for (epoch, job) in [(1, 9), (2, 1), (2, 2), (1, 10), (2, 3)] {
        connecting.send(&Frame::new(epoch, job, ""), soon()).unwrap();
    }
    accepting.discard_before(2, 2);
    assert_eq!(accepting.receive(soon()).unwrap().job, 2);
    assert_eq!(accepting.receive(soon()).unwrap().job, 3);
    assert_eq!(accepting.discarded(), 3);
}

#[test]
fn a_failure_is_waited_for_while_frames_wait() {
    let (connecting, accepting) = pair(Options::default(), Options::default());
    assert!(accepting.wait_failed(Instant::now() + Duration::from_millis(50)).is_none());
    connecting.send(&Frame::new(1, 1, "{}"), soon()).unwrap();
    drop(connecting);
    let failure = accepting.wait_failed(soon()).unwrap();
    assert!(matches!(failure, WireError::Closed { .. }), "{failure}");
    assert_eq!(accepting.receive(soon()).unwrap().job, 1);
}
