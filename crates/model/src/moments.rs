//! The moments of an optimizer, in 32 or 8 bits.

use std::borrow::Cow;
use std::sync::OnceLock;

use rloom_ops::{self as ops, AdamW, Buf, Ctx, Int8Moments};
use safetensors::Dtype;

use crate::checkpoint::{TensorFile, TensorOut, Values};
use crate::model::tensors_out;
use crate::tensors::{TensorSpec, named};
use crate::{CheckpointError, Model, MomentFormat};

/// Elements below which a buffer keeps moments of 32 bits.
pub(crate) const SMALL: usize = 4096;
/// Prefixes of the first and the second moment in files.
const PREFIXES: [&str; 2] = ["exp_avg.", "exp_avg_sq."];

/// Both moments of every trained buffer.
#[derive(Debug, Clone)]
pub(crate) struct Moments(Vec<BufMoments>);

/// Both moments of a buffer.
#[derive(Debug, Clone)]
pub(crate) enum BufMoments {
    F32([Buf; 2]),
    Int8(Int8Moments),
}

impl BufMoments {
    /// One step of AdamW.
    pub(crate) fn step(&mut self, ctx: &Ctx, w: &mut Buf, grad: &Buf, settings: &AdamW) {
        match self {
            Self::F32([m, v]) => ops::adamw(ctx, w, m, v, grad, settings),
            Self::Int8(moments) => ops::adamw_int8(ctx, w, moments, grad, settings),
        }
    }
}

impl Moments {
    /// Zeros for what is trained of a model.
    pub(crate) fn zeros(model: &Model, format: MomentFormat) -> Self {
        let of = |buf: &Buf| match format {
            MomentFormat::Int8 if buf.len() >= SMALL => BufMoments::Int8(Int8Moments::zeros(buf.len())),
            MomentFormat::Int8 | MomentFormat::F32 => {
                BufMoments::F32([Buf::zeros(buf.len()), Buf::zeros(buf.len())])
            }
        };
        Self(model.trained_bufs().into_iter().map(of).collect())
    }

    /// Number of buffers.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those of every buffer.
    pub(crate) fn bufs_mut(&mut self) -> impl Iterator<Item = &mut BufMoments> {
        self.0.iter_mut()
    }

    /// The tensors of a file: moments of 32 bits by the names of their weights, those of 8 bits by the index of their buffer.
    pub(crate) fn tensors<'a>(&'a self, specs: &'a [TensorSpec]) -> Vec<TensorOut<'a>> {
        static EMPTY: OnceLock<Buf> = OnceLock::new();
        let empty = EMPTY.get_or_init(Buf::default);
        let mut tensors = Vec::new();
        for (moment, prefix) in PREFIXES.into_iter().enumerate() {
            let wide = self.0.iter().map(|moments| match moments {
                BufMoments::F32(moments) => &moments[moment],
                BufMoments::Int8(_) => empty,
            });
            tensors.extend(tensors_out(named(wide.collect(), specs), prefix));
            for (buffer, moments) in self.0.iter().enumerate() {
                let BufMoments::Int8(moments) = moments else { continue };
                let (codes, scales) = moments.parts()[moment];
                for (part, len, values) in [
                    (CODES, codes.len(), Values::Bytes(codes)),
                    (SCALES, scales.len(), Values::Floats(scales)),
                ] {
                    let name = name(prefix, buffer, part);
                    tensors.push(TensorOut { name, shape: Cow::Owned(vec![len]), values });
                }
            }
        }
        tensors
    }

    /// Reads the tensors of a file.
    pub(crate) fn read(&mut self, file: &TensorFile, specs: &[TensorSpec]) -> Result<(), CheckpointError> {
        for (moment, prefix) in PREFIXES.into_iter().enumerate() {
            for (buffer, moments) in self.0.iter_mut().enumerate() {
                match moments {
                    BufMoments::F32(moments) => {
                        for spec in specs.iter().filter(|spec| spec.buffer == buffer) {
                            let to = &mut moments[moment].as_mut_slice()[spec.offset..][..spec.len()];
                            file.read_into(&format!("{prefix}{}", spec.name), &spec.shape, to)?;
                        }
                    }
                    BufMoments::Int8(moments) => {
                        let [first, second] = moments.parts_mut();
                        let (codes, scales) = if moment == 0 { first } else { second };
                        let shape = [codes.len()];
                        file.read_raw(&name(prefix, buffer, CODES), &shape, Dtype::U8, codes)?;
                        let shape = [scales.len()];
                        file.read_into(&name(prefix, buffer, SCALES), &shape, scales)?;
                    }
                }
            }
        }
        Ok(())
    }
}

const CODES: &str = "codes";
const SCALES: &str = "scales";

/// Name of a part of the moments of a buffer.
fn name(prefix: &str, buffer: usize, part: &str) -> String {
    format!("{prefix}buffer{buffer:04}.{part}")
}
