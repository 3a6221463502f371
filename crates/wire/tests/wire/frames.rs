//! Frames survive encoding, and no bytes make decoding fail otherwise than with an error.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use rloom_wire::{Dtype, Frame, FrameError, Tensor};

const LIMIT: u64 = 1 << 20;

fn tensor(name: String, shape: &[usize], kind: usize) -> Tensor {
    let count: usize = shape.iter().product();
    match kind {
        0 => Tensor::new(name, shape, &(0..count).map(|i| i as u8).collect::<Vec<_>>()),
        1 => Tensor::new(name, shape, &(0..count).map(|i| i as i64 - 7).collect::<Vec<_>>()),
        2 => Tensor::new(name, shape, &(0..count).map(|i| i as f32 / 3.0).collect::<Vec<_>>()),
        _ => Tensor::new(name, shape, &(0..count).map(|i| i as f64 / 7.0).collect::<Vec<_>>()),
    }
}

fn frames() -> impl Strategy<Value = Frame> {
    let tensors = btree_map("[^_]{0,8}", (vec(0_usize..5, 0..4), 0_usize..4), 0..6);
    (any::<u64>(), any::<u64>(), any::<String>(), tensors).prop_map(|(epoch, job, message, tensors)| {
        let tensors = tensors.into_iter().map(|(name, (shape, kind))| tensor(name, &shape, kind)).collect();
        Frame { epoch, job, message, tensors }
    })
}

fn by_name(frame: &Frame) -> BTreeMap<&str, &Tensor> {
    frame.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect()
}

proptest! {
    #[test]
    fn a_frame_survives(frame in frames()) {
        let bytes = frame.encode().unwrap();
        let decoded = Frame::decode(&bytes, LIMIT).unwrap();
        prop_assert_eq!(by_name(&decoded), by_name(&frame));
        prop_assert_eq!(decoded.tensors.len(), frame.tensors.len());
        prop_assert_eq!((decoded.epoch, decoded.job, &decoded.message), (frame.epoch, frame.job, &frame.message));
        for tensor in &decoded.tensors {
            if tensor.dtype == Dtype::F64 && !tensor.data.is_empty() {
                prop_assert_eq!(tensor.data.as_ptr() as usize % 8, 0, "aligned for its type");
            }
        }
    }

    #[test]
    fn a_shorter_frame_is_incomplete(frame in frames(), cut in 0.0..1.0) {
        let bytes = frame.encode().unwrap();
        let kept = (bytes.len() as f64 * cut) as usize;
        prop_assert_eq!(Frame::decode(&bytes[..kept], LIMIT), Err(FrameError::Truncated));
    }

    #[test]
    fn changed_bytes_give_a_frame_or_an_error(frame in frames(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes = frame.encode().unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(frame) = Frame::decode(&bytes, LIMIT) {
            for tensor in &frame.tensors {
                let elements: usize = tensor.shape.iter().product();
                prop_assert_eq!(elements * tensor.dtype.bitsize() / 8, tensor.data.len());
            }
        }
    }

    #[test]
    fn random_bytes_are_no_frame(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert!(Frame::decode(&bytes, LIMIT).is_err());
    }
}

fn with_header(length: u64, header: &str, data: usize) -> Vec<u8> {
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(vec![0; data]);
    bytes
}

const METADATA: &str = r#""__metadata__":{"kind":"data","epoch":"1","job":"2","message":"{}"}"#;

#[test]
fn sizes_that_lie_are_refused_by_name() {
    let refused = |bytes: &[u8]| Frame::decode(bytes, LIMIT).unwrap_err();
    let huge = u64::MAX.to_le_bytes();
    assert_eq!(refused(&huge), FrameError::Size { bytes: u64::MAX, limit: LIMIT });
    assert_eq!(refused(&4_u64.to_le_bytes()), FrameError::HeaderSize { bytes: 0 });
    let mut header = LIMIT.to_le_bytes().to_vec();
    header.extend(huge);
    assert_eq!(refused(&header), FrameError::HeaderSize { bytes: u64::MAX });
    let tensors = [
        // More data than the frame, less, a gap, an overlap, an overflow, another type, no such type.
        r#""a":{"dtype":"F32","shape":[100],"data_offsets":[0,400]}"#,
        r#""a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}"#,
        r#""a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#,
        r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#,
        r#""a":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,8]}"#,
        r#""a":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}"#,
        r#""a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}"#,
        r#""a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}"#,
    ];
    for tensors in tensors {
        let header = format!("{{{METADATA},{tensors}}}");
        let error = refused(&with_header(8 + header.len() as u64 + 8, &header, 8));
        assert!(matches!(error, FrameError::Header { .. }), "{tensors}: {error}");
    }
    for metadata in
        ["", r#""__metadata__":{}"#, &METADATA.replace('2', "two"), &METADATA.replace("data", "rest")]
    {
        let header = format!("{{{metadata}}}");
        let error = refused(&with_header(8 + header.len() as u64, &header, 0));
        assert!(matches!(error, FrameError::Header { .. }), "{metadata}: {error}");
    }
    let deep = "[".repeat(100_000);
    assert!(matches!(refused(&with_header(8 + 100_000, &deep, 0)), FrameError::Header { .. }));
}

#[test]
fn tensors_are_found_by_name_and_type() {
    let frame = Frame { tensors: vec![Tensor::new("ids", &[2], &[3_i64, 4])], ..Frame::new(0, 0, "{}") };
    let ids = frame.tensor("ids").unwrap();
    assert_eq!(ids.elements::<i64>().unwrap(), [3, 4]);
    assert!(matches!(ids.elements::<f64>(), Err(FrameError::Dtype { .. })));
    assert_eq!(frame.tensor("mask").unwrap_err().to_string(), "the frame has no tensor `mask`");
    assert!(frame.parse::<Vec<u8>>().is_err());
    for name in ["ids", "__metadata__"] {
        let second = Tensor::new(name, &[1], &[1.0_f32]);
        let frame = Frame { tensors: vec![frame.tensors[0].clone(), second], ..Frame::new(0, 0, "") };
        assert_eq!(frame.encode(), Err(FrameError::Name { name: name.to_owned() }));
    }
    let wrong = Frame { tensors: vec![Tensor::new("a", &[3], &[1_u8])], ..Frame::new(0, 0, "") };
    assert!(matches!(wrong.encode(), Err(FrameError::Header { .. })));
}
