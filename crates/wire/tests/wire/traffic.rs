//! Large frames, and both directions at once.

use std::time::{Duration, Instant};

use rloom_wire::{Connection, Frame, FrameError, Options, Tensor, WireError};

use crate::{pair, soon};

fn numbered(job: u64, elements: usize) -> Frame {
    let values: Vec<f32> = (0..elements).map(|i| i as f32 + job as f32).collect();
    let ids: Vec<i64> = (0..elements as i64).collect();
    let tensors = vec![Tensor::new("values", &[elements], &values), Tensor::new("ids", &[1, elements], &ids)];
    Frame { tensors, ..Frame::new(3, job, format!("{{\"job\":{job}}}")) }
}

#[test]
fn large_tensors_arrive_unchanged() {
    let (connecting, accepting) = pair(Options::default(), Options::default());
    let frame = numbered(1, 8 << 20);
    let sending = std::thread::spawn(move || connecting.send(&frame, soon()).map(|()| (connecting, frame)));
    let received = accepting.receive(soon()).unwrap();
    let (_connecting, sent) = sending.join().unwrap().unwrap();
    assert_eq!(received.tensor("values").unwrap(), sent.tensor("values").unwrap());
    assert_eq!(received.tensor("ids").unwrap(), sent.tensor("ids").unwrap());
}

/// Sends and receives `count` frames at once.
fn exchange(connection: &Connection, count: u64) {
    let receiving = connection.clone();
    let receiving = std::thread::spawn(move || {
        for job in 0..count {
            let frame = receiving.receive(soon()).unwrap();
            assert_eq!((frame.job, frame.tensors.len()), (job, 2));
        }
    });
    for job in 0..count {
        connection.send(&numbered(job, 1 << 18), soon()).unwrap();
    }
    receiving.join().unwrap();
}

#[test]
fn both_directions_carry_load_at_once() {
    // Smaller than one frame: the readers stop and go on all the time. Beats go between the frames.
    let options = Options { queue_bytes: 1 << 10, beat: Duration::from_millis(1), ..Options::default() };
    let (connecting, accepting) = pair(options, options);
    let other = std::thread::spawn(move || exchange(&accepting, 40));
    exchange(&connecting, 40);
    other.join().unwrap();
}

#[test]
fn frames_of_several_threads_are_not_interleaved() {
    let (connecting, accepting) = pair(Options::default(), Options::default());
    let senders: Vec<_> = (0..4)
        .map(|sender| {
            let connection = connecting.clone();
            std::thread::spawn(move || {
                for job in 0..5 {
                    connection.send(&numbered(100 * sender + job, 1 << 19), soon()).unwrap();
                }
            })
        })
        .collect();
    let mut next = [0; 4];
    for _ in 0..20 {
        let frame = accepting.receive(soon()).unwrap();
        let expected = &mut next[(frame.job / 100) as usize];
        assert_eq!(frame.job % 100, *expected);
        *expected += 1;
    }
    for sender in senders {
        sender.join().unwrap();
    }
}

#[test]
fn a_frame_above_the_limit_is_refused_where_it_is_sent_and_received() {
    let small = Options { frame_bytes: 10_000, ..Options::default() };
    let (connecting, accepting) = pair(Options::default(), small);
    let error = accepting.send(&numbered(0, 10_000), soon()).unwrap_err();
    assert!(matches!(error, WireError::Frame { source: FrameError::Size { .. }, .. }), "{error}");
    // Nothing was sent, so the connection is intact.
    accepting.send(&numbered(0, 10), soon()).unwrap();
    assert_eq!(connecting.receive(soon()).unwrap(), numbered_as_received(10));
    connecting.send(&numbered(0, 10_000), soon()).unwrap();
    let error = accepting.receive(soon()).unwrap_err();
    assert!(matches!(error, WireError::Frame { source: FrameError::Size { .. }, .. }), "{error}");
}

fn numbered_as_received(elements: usize) -> Frame {
    let mut frame = numbered(0, elements);
    frame.tensors.reverse();
    frame
}

#[test]
fn a_deadline_in_the_past_still_takes_a_frame_that_is_there() {
    let (connecting, accepting) = pair(Options::default(), Options::default());
    connecting.send(&numbered(1, 1), soon()).unwrap();
    connecting.send(&numbered(2, 1), soon()).unwrap();
    assert_eq!(accepting.receive(soon()).unwrap().job, 1);
    let mut second = accepting.receive(Instant::now());
    while second.is_err() {
        second = accepting.receive(Instant::now());
    }
    assert_eq!(second.unwrap().job, 2);
}
