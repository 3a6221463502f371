//! Requests and answers as clients send and read them.

mod json;
mod proto;
mod tensor;

pub(crate) use json::{
    AdamParams, CreateModel, CreateSamplingSession, CreateSession, Heartbeat, LoadWeights, LoraSettings,
    ModelId, OptimStep, OptimizerConfig, RequestId, Sample, SamplingParams, SaveForSampler, SaveWeights,
    SdkVersion, Stop, TinkerPath,
};
pub(crate) use proto::{
    ArrayRecord, BatchedTensor, Datum, ForwardBackwardOutput, ForwardBackwardRequest, LossConfigValue,
    SampleResponse, SampledSequence,
};
#[cfg(test)]
pub(crate) use proto::{Chunk, EncodedText, Tensor};
pub(crate) use tensor::{bytes_of, floats, integers, tokens};

/// Number of `f32` in the wire's enumeration of element types.
pub(crate) const FLOAT32: i32 = 1;
