//! From the data of a request to micro-batches, and back to its results.

use rloom_algo::{LossInputs, TokenScores};
use rloom_core::{SampleKey, Ticket};
use rloom_engine::PackedBatch;

use crate::loss::Loss;
use crate::problem::Failed;
use crate::wire::{self, Datum};

/// Limit of the tokens that targets which are not the next input add to a datum, as a multiple of the context.
const MAX_ADDED_CONTEXTS: usize = 8;

/// What a request is trained on.
#[derive(Debug, Default)]
pub(crate) struct Data {
    sequences: Vec<Sequence>,
    /// Targets of each datum.
    targets: Vec<usize>,
}

/// A sequence with the targets that are scored on it.
#[derive(Debug)]
struct Sequence {
    datum: usize,
    tokens: Vec<u32>,
    scored: Vec<Target>,
}

/// A target of a datum.
#[derive(Debug, Clone, Copy)]
struct Target {
    /// Its position among the datum's targets.
    index: usize,
    /// Its position in the sequence.
    position: usize,
    factor: f32,
    sampled: f32,
}

impl Data {
    /// Reads and checks the data of a request for a model.
    pub(crate) fn read(
        data: &[Datum],
        loss: &Loss,
        vocabulary: usize,
        context: usize,
    ) -> Result<Self, Failed> {
        if data.is_empty() {
            return Err(Failed::user("there is no datum"));
        }
        let mut read = Self::default();
        for (index, datum) in data.iter().enumerate() {
            read.add(datum, loss, vocabulary, context)
                .map_err(|message| Failed::user(format!("datum {index}: {message}")))?;
        }
        Ok(read)
    }

    fn add(&mut self, datum: &Datum, loss: &Loss, vocabulary: usize, context: usize) -> Result<(), String> {
        let input = wire::tokens(&datum.model_input)?;
        let tensor = |name: &str| datum.loss_fn_inputs.get(name);
        let named = |name: &'static str| move |error: String| format!("`{name}`: {error}");
        let targets = tensor("target_tokens").ok_or("`target_tokens` is missing")?;
        let targets = wire::integers(targets).map_err(named("target_tokens"))?;
        let targets = targets
            .into_iter()
            .map(|token| u32::try_from(token).map_err(|_| format!("`target_tokens`: {token} is no token")))
            .collect::<Result<Vec<u32>, String>>()?;
        let count = targets.len();
        if count != input.len() || count == 0 {
            return Err(format!(
                "`target_tokens` has {count} tokens and `model_input` {}: both must have the same number, at least 1",
                input.len()
            ));
        }
        if let Some(token) = input.iter().chain(&targets).find(|&&token| token as usize >= vocabulary) {
            return Err(format!("token {token} is outside of the vocabulary of {vocabulary}"));
        }
        if count >= context {
            return Err(format!(
                "{count} tokens and the last target are longer than the model's context of {context} tokens"
            ));
        }
        let numbers = |name: &'static str, default: Option<f32>| {
            let values = match (tensor(name), default) {
                (Some(tensor), _) => wire::floats(tensor).map_err(named(name))?,
                (None, Some(default)) => vec![default; count],
                (None, None) => return Err(format!("`{name}` is missing")),
            };
            if values.len() == count {
                Ok(values)
            } else {
                Err(format!("`{name}` has {} numbers for {count} targets", values.len()))
            }
        };
        let every = (!loss.reads_sampler).then_some(1.0);
        let factors = numbers(loss.factor, every)?;
        let sampled = if loss.reads_sampler { numbers("logprobs", None)? } else { vec![0.0; count] };
        let target = |index: usize, position: usize| Target {
            index,
            position,
            factor: factors[index],
            sampled: sampled[index],
        };
        let is_next = |index: usize| index + 1 == count || input[index + 1] == targets[index];
        let datum = self.targets.len();
        let mut whole = input.clone();
        whole.push(targets[count - 1]);
        let scored = (0..count).filter(|&index| is_next(index)).map(|index| target(index, index + 1));
        self.sequences.push(Sequence { datum, tokens: whole, scored: scored.collect() });
        // A target that is not the next input is the end of a sequence of its own.
        let mut added = 0;
        for index in (0..count).filter(|&index| !is_next(index)) {
            let mut tokens = input[..=index].to_vec();
            tokens.push(targets[index]);
            added += tokens.len();
            if added > MAX_ADDED_CONTEXTS * context {
                return Err(
                    "too many targets are not the next token of `model_input`: shift the sequence by one token".to_owned()
                );
            }
            self.sequences.push(Sequence { datum, tokens, scored: vec![target(index, index + 1)] });
        }
        self.targets.push(count);
        Ok(())
    }

    /// Policy tokens of each sequence.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.sequences.iter().map(|sequence| sequence.scored.len())
    }

    /// Number of targets.
    pub(crate) fn count(&self) -> usize {
        self.targets.iter().sum()
    }

    /// Micro-batches of whole sequences with at most `limit` tokens, or one longer sequence, and the inputs of the loss.
    pub(crate) fn pack(&self, loss: &Loss, limit: usize) -> (Vec<PackedBatch>, Vec<LossInputs>) {
        let (mut batches, mut inputs) = (Vec::new(), Vec::new());
        let mut rest = &self.sequences[..];
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = |sequence: &&Sequence| {
                tokens += sequence.tokens.len();
                tokens <= limit
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (part, later) = rest.split_at(count);
            batches.push(packed(part));
            inputs.push(loss_inputs(part, loss));
            rest = later;
        }
        (batches, inputs)
    }

    /// Log-probabilities of each datum's targets.
    pub(crate) fn logprobs(&self, scores: &[TokenScores]) -> Vec<Vec<f32>> {
        let mut logprobs: Vec<Vec<f32>> = self.targets.iter().map(|&count| vec![0.0; count]).collect();
        let values = scores.iter().flat_map(|scores| scores.logprob.iter().copied());
        let targets = self
            .sequences
            .iter()
            .flat_map(|sequence| sequence.scored.iter().map(|target| (sequence.datum, target.index)));
        for ((datum, index), value) in targets.zip(values) {
            logprobs[datum][index] = value;
        }
        logprobs
    }
}

fn packed(sequences: &[Sequence]) -> PackedBatch {
    let mut batch = PackedBatch { seq_starts: vec![0], ..PackedBatch::default() };
    for (segment, sequence) in sequences.iter().enumerate() {
        let (base, first) = (batch.tokens.len(), batch.rows.len());
        batch.tokens.extend_from_slice(&sequence.tokens);
        batch.seq_starts.push(batch.tokens.len());
        batch.parents.push(None);
        batch.segments.push(segment);
        batch.rows.extend(sequence.scored.iter().map(|target| (base + target.position) as u32));
        batch.inv_temperature.resize(batch.rows.len(), 1.0);
        batch.sequences.push(first..batch.rows.len());
        let ticket = Ticket(sequence.datum as u64);
        batch.keys.push(SampleKey { ticket, ..SampleKey::default() });
    }
    batch
}

fn loss_inputs(sequences: &[Sequence], loss: &Loss) -> LossInputs {
    let mut inputs = LossInputs::default();
    let mut end = 0;
    for sequence in sequences {
        let start = end;
        end += sequence.scored.len();
        inputs.rows.push(start..end);
    }
    let all = || sequences.iter().flat_map(|sequence| &sequence.scored);
    inputs.advantage = Some(all().map(|target| target.factor).collect());
    inputs.behavior = loss.reads_sampler.then(|| all().map(|target| target.sampled).collect());
    inputs
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::wire::{Chunk, EncodedText, Tensor};

    fn tensor(values: &serde_json::Value, integers: bool) -> Tensor {
        let numbers = values.as_array().unwrap();
        let dense = if integers {
            wire::bytes_of(numbers.iter().map(|v| v.as_i64().unwrap().to_le_bytes()))
        } else {
            wire::bytes_of(numbers.iter().map(|v| (v.as_f64().unwrap() as f32).to_le_bytes()))
        };
        Tensor { dense: Some(dense), sparse: None, dtype: if integers { 2 } else { 1 }, shape: Vec::new() }
    }

    /// A datum from its tokens and tensors.
    fn datum(tokens: &[i32], inputs: &serde_json::Value) -> Datum {
        let text = EncodedText { tokens: wire::bytes_of(tokens.iter().map(|token| token.to_le_bytes())) };
        let chunk = Chunk { encoded_text: Some(text), image: None, audio: None };
        let named = |(name, values): (&String, &serde_json::Value)| {
            (name.clone(), tensor(values, name == "target_tokens"))
        };
        let loss_fn_inputs = inputs.as_object().unwrap().iter().map(named).collect();
        Datum { model_input: vec![chunk], loss_fn_inputs }
    }

    fn loss(name: &str) -> Loss {
        Loss::new(name, &BTreeMap::new()).unwrap()
    }

    #[test]
    fn targets_become_rows_of_packed_sequences() {
        let loss = loss("importance_sampling");
        let data = [
            datum(
                &[5, 6, 7],
                &json!({"target_tokens": [6, 7, 8], "logprobs": [-1, -2, -3], "advantages": [0, 1, 2]}),
            ),
            // Its second target is not the next input.
            datum(
                &[1, 2, 3],
                &json!({"target_tokens": [2, 9, 4], "logprobs": [-4, -5, -6], "advantages": [3, 4, 5]}),
            ),
        ];
        let data = Data::read(&data, &loss, 10, 16).unwrap();
        let (batches, inputs) = data.pack(&loss, 8);
        assert_eq!(batches.len(), 2);
        assert_eq!(batches[0].tokens, [5, 6, 7, 8, 1, 2, 3, 4]);
        assert_eq!(batches[0].rows, [1, 2, 3, 5, 7]);
        assert_eq!(batches[0].sequences, [0..3, 3..5]);
        assert_eq!(inputs[0].advantage.as_deref(), Some(&[0.0, 1.0, 2.0, 3.0, 5.0][..]));
        assert_eq!(inputs[0].behavior.as_deref(), Some(&[-1.0, -2.0, -3.0, -4.0, -6.0][..]));
        assert_eq!((&batches[1].tokens[..], &batches[1].rows[..]), (&[1, 2, 9][..], &[2][..]));
        assert_eq!(inputs[1].behavior.as_deref(), Some(&[-5.0][..]));
        assert_eq!(data.lengths().collect::<Vec<_>>(), [3, 2, 1]);
        let scores = |logprob: &[f32]| TokenScores { logprob: logprob.to_vec(), ..TokenScores::default() };
        let logprobs = data.logprobs(&[scores(&[0.1, 0.2, 0.3, 0.4, 0.6]), scores(&[0.5])]);
        assert_eq!(logprobs, [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]);
        // A sequence that is longer than the limit is a micro-batch of its own.
        assert_eq!(data.pack(&loss, 1).0.len(), 3);
    }

    #[test]
    fn weights_default_to_one() {
        let loss = loss("cross_entropy");
        let data = Data::read(&[datum(&[1, 2], &json!({"target_tokens": [2, 3]}))], &loss, 10, 16).unwrap();
        let (_, inputs) = data.pack(&loss, 100);
        assert_eq!((inputs[0].advantage.as_deref(), &inputs[0].behavior), (Some(&[1.0, 1.0][..]), &None));
    }

    #[test]
    fn what_cannot_be_trained_on_is_refused() {
        for (name, tokens, inputs, expected) in [
            ("ppo", &[1, 2][..], json!({"target_tokens": [2, 3]}), "`advantages` is missing"),
            ("ppo", &[1, 2], json!({"target_tokens": [2, 3], "advantages": [1, 1]}), "`logprobs` is missing"),
            ("cross_entropy", &[1, 2], json!({"weights": [1, 1]}), "`target_tokens` is missing"),
            ("cross_entropy", &[1, 2], json!({"target_tokens": [2]}), "same number"),
            ("cross_entropy", &[], json!({"target_tokens": []}), "same number"),
            ("cross_entropy", &[1, 2], json!({"target_tokens": [2, 3], "weights": [1]}), "1 numbers for 2"),
            ("cross_entropy", &[1, 10], json!({"target_tokens": [10, 3]}), "token 10 is outside"),
            ("cross_entropy", &[1, 2], json!({"target_tokens": [2, -100]}), "-100 is no token"),
            ("cross_entropy", &[1; 16], json!({"target_tokens": vec![1; 16]}), "context of 16"),
        ] {
            let failed = Data::read(&[datum(tokens, &inputs)], &loss(name), 10, 16).unwrap_err();
            assert!(failed.is_of_user && failed.message.contains(expected), "{}", failed.message);
        }
        assert!(Data::read(&[], &loss("ppo"), 10, 16).is_err());
    }
}
