//! The messages of the wire's protobuf that training needs, written from the field numbers of the descriptors in the
//! package `tinker` 0.38.0. Other fields are skipped, as the format allows. A member that is only recognised, to be refused,
//! is declared as bytes: on the wire a message is bytes with a length, too.

use std::collections::BTreeMap;

/// A forward pass, with or without a backward pass.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ForwardBackwardRequest {
    #[prost(string, tag = "1")]
    pub(crate) model_id: String,
    #[prost(int32, tag = "2")]
    pub(crate) seq_id: i32,
    #[prost(message, repeated, tag = "3")]
    pub(crate) data: Vec<Datum>,
    #[prost(string, tag = "4")]
    pub(crate) loss_fn: String,
    /// Numbers of the loss, for servers that do not know field 7.
    #[prost(btree_map = "string, double", tag = "5")]
    pub(crate) loss_fn_config: BTreeMap<String, f64>,
    #[prost(bool, tag = "6")]
    pub(crate) forward_only: bool,
    /// Settings of the loss; takes precedence over field 5.
    #[prost(btree_map = "string, message", tag = "7")]
    pub(crate) loss_fn_config_v2: BTreeMap<String, LossConfigValue>,
}

/// A number or a text.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LossConfigValue {
    #[prost(double, optional, tag = "1")]
    pub(crate) number: Option<f64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) text: Option<String>,
}

/// A sequence with what its loss reads.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Datum {
    #[prost(message, repeated, tag = "1")]
    pub(crate) model_input: Vec<Chunk>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) loss_fn_inputs: BTreeMap<String, Tensor>,
}

/// A part of a sequence; one of the members is present.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Chunk {
    #[prost(message, optional, tag = "1")]
    pub(crate) encoded_text: Option<EncodedText>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) image: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(crate) audio: Option<Vec<u8>>,
}

/// Token ids as little-endian `i32`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EncodedText {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) tokens: Vec<u8>,
}

/// Numbers in little-endian order; one of the first two members is present.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Tensor {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(crate) dense: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) sparse: Option<Vec<u8>>,
    #[prost(int32, tag = "3")]
    pub(crate) dtype: i32,
    #[prost(int64, repeated, tag = "4")]
    pub(crate) shape: Vec<i64>,
}

/// Result of a forward pass.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ForwardBackwardOutput {
    #[prost(string, tag = "1")]
    pub(crate) loss_fn_output_type: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) loss_fn_outputs: Vec<ArrayRecord>,
    /// Keys are `name:reduction`.
    #[prost(btree_map = "string, double", tag = "3")]
    pub(crate) metrics: BTreeMap<String, f64>,
}

/// Arrays with one part per datum.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ArrayRecord {
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) fields: BTreeMap<String, BatchedTensor>,
    #[prost(int64, tag = "3")]
    pub(crate) num_datums: i64,
}

/// The parts of an array, concatenated.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BatchedTensor {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) data: Vec<u8>,
    /// Byte at which each part starts, and the end, as `i64`.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) offsets: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub(crate) dtype: i32,
}

/// Result of sampling.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SampleResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) sequences: Vec<SampledSequence>,
    /// A `f32` for each token of the prompt; NaN where there is none.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) prompt_logprobs: Option<Vec<u8>>,
}

/// A completion.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SampledSequence {
    /// 0: stopped, 1: length.
    #[prost(int32, tag = "1")]
    pub(crate) stop_reason: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) tokens: Vec<u8>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(crate) logprobs: Option<Vec<u8>>,
}
