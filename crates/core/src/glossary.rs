//! # Glossary
//!
//! The terms of the workspace. Each word has one meaning, in identifiers, messages and documentation.
//!
//! - **activation checkpointing**: A training mode that keeps only each layer's input and recomputes the other
//!   activations in the backward pass; it trades compute for memory and does not change results.
//! - **adapter**: A LoRA: low-rank weights that are trained and published on top of frozen base weights.
//! - **admission**: The scheduler's decision to start a group; a group is admitted while the groups in flight fit the
//!   staleness bound.
//! - **advantage**: The credit of an episode or token: how much better it was than its baseline.
//! - **age**: The policy's current version minus the oldest version that sampled one of a group's policy tokens; its
//!   unit is versions.
//! - **agent**: An LLM program that calls the policy, usually several times per episode.
//! - **attachment**: Opaque data that belongs to a sequence, such as an encoded image.
//! - **attempt (of a run)**: One process that works on a run; each resume is a new attempt. (An attempt at a task is
//!   an *episode*.)
//! - **baseline**: The expected reward that an advantage subtracts, such as the group's mean or the reward of a
//!   greedy episode.
//! - **batch**: The groups that the scheduler cut for one step.
//! - **batch-invariant**: A property of kernels: a token's result does not depend on what else is in the same call.
//! - **behaviour policy**: The policy version that sampled a token, with the log-probability recorded at sampling
//!   time.
//! - **bitwise identical**: Equal in every bit, not merely within a tolerance.
//! - **capabilities**: What an engine declares about itself: exactness, accepted weight forms, granularity of
//!   versions, supported features.
//! - **checkpoint**: A durable directory with the weights, optimiser state and counters of a step.
//! - **clip**: To bound an importance ratio or a gradient norm.
//! - **completion**: The tokens that the policy writes in response to a prompt; in single-turn episodes, all policy
//!   tokens.
//! - **component**: One named and weighted part of a reward.
//! - **context**: The maximum number of tokens in a sequence, prompt and completion included.
//! - **correction**: Importance weighting or rejection of tokens whose behaviour policy differs from the proximal
//!   policy.
//! - **curriculum**: Quotas that follow the measured success of the domains.
//! - **cut**: The scheduler's decision which ready groups form the next batch; the journal records it.
//! - **deadline**: A point in time at which something fails; compare *timeout*.
//! - **decode**: Generation of one token per sequence and forward pass, with cached keys and values.
//! - **deferred**: Said of a group that missed its batch because it was still running and is trained on in a later
//!   one.
//! - **demonstration**: A completion, or the policy's turns, that supervised stages train on.
//! - **digest**: A hash of the parameters; equal weights have equal digests.
//! - **domain**: A label of a task, used for reward routing, quotas and metrics.
//! - **draft**: Tokens proposed by speculation and not yet verified by the model.
//! - **dtype**: The number format of matrix products: f32 or bf16.
//! - **engine**: An implementation of generation (rollout engine) or of training (train engine), in the same process
//!   or outside it.
//! - **environment**: The counterpart of the policy in an episode: it gives the prompt, answers turns with
//!   observations and may give step rewards.
//! - **episode**: One attempt at a task: one or more segments with a common reward.
//! - **epoch (of data)**: One pass over a dataset.
//! - **epoch (of training)**: One pass over the batch of a step; several epochs reuse the same samples.
//! - **evaluation**: Episodes on held-out tasks, pinned to one policy version and never trained on.
//! - **exact**: Said of log-probabilities from sampling that are bitwise identical to those that the trainer
//!   computes.
//! - **failed**: The outcome of a group that an error or a timeout ended; a replacement is admitted.
//! - **filtered**: The outcome of a complete group that is not trained on because a filter rejected it, such as one
//!   whose rewards are all equal.
//! - **form**: A way of handing weights to a rollout engine: in memory, as a folder, over a collective, as an
//!   adapter.
//! - **greedy**: Decoding that takes the most probable token; temperature 0.
//! - **group**: The episodes sampled for one task; the advantage compares them.
//! - **in flight**: Started and not finished.
//! - **journal**: The append-only record of groups, scores and cuts of a run; the source of truth for what was
//!   generated and
//!   trained on.
//! - **judge**: A reward that asks a language model for its verdict; also the act of scoring a completion.
//! - **KL**: The divergence between two policies, estimated per token in nats.
//! - **KV block**: A fixed number of positions of cached keys and values; the unit of allocation in a rollout engine.
//! - **lane**: A rollout worker thread of the embedded engine with its own KV blocks.
//! - **lineage**: The history of a sample or checkpoint: from which data, versions and seeds it came.
//! - **load**: To install a published policy in a rollout engine.
//! - **logprob**: Log-probability of a token under the full softmax at its temperature, in nats.
//! - **micro-batch**: The packed sequences of one forward and backward pass.
//! - **minibatch**: The part of a batch that one optimizer step uses.
//! - **mismatch**: The difference between the log-probabilities of sampling and training for the same tokens and
//!   version.
//! - **normaliser**: The global count by which a summed loss is divided.
//! - **numeric path**: The set of kernels that computes results (portable, AVX2, AVX-512, AMX); equal paths give
//!   bitwise identical results.
//! - **observation**: Tokens that the environment appends after a turn; the policy takes another turn.
//! - **off-policy**: Trained with samples of an older policy version than the current one.
//! - **optimizer step**: One update of the weights; a step has one or more.
//! - **outcome**: The verdict of the outcome verifier, which decides whether a task counts as solved; of a ticket:
//!   trained, filtered, stale, failed or surplus.
//! - **pack**: To place several sequences into one micro-batch without padding.
//! - **pass@k**: The probability that at least one of k samples solves a task.
//! - **pin**: To bind requests to one policy version, as evaluation does.
//! - **policy**: A model that is trained; versions count separately for each policy.
//! - **prefill**: The forward pass over the tokens that are known before decoding starts.
//! - **prompt**: The tokens before the first policy token of a trajectory.
//! - **proximal policy**: The policy whose log-probabilities are the denominator of the clipped ratio: the weights at
//!   the start of the step.
//! - **publish**: To hand the weights of a new version over to rollout.
//! - **quota**: The share of the trained groups that a domain fills, exactly over time.
//! - **rank**: One process of a distributed train engine.
//! - **ready**: Said of a group whose episodes are all generated and scored and that waits to be trained on.
//! - **rebuild**: To recompute the weights after the last checkpoint by training on the journal's recorded cuts
//!   again.
//! - **recipe**: A configuration file that describes a run as a list of stages.
//! - **recompute**: The treatment of tokens in flight on a weight update that computes their keys and values again
//!   under the new weights. (For the trainer's technique, see *activation checkpointing*.)
//! - **reference policy**: Frozen weights that a KL penalty compares the policy with.
//! - **replay**: To regenerate recorded samples from their seeds and versions and compare them with the record.
//! - **replica**: One of several equal rollout engines behind a pool.
//! - **resume**: To continue a run in a new process from its checkpoint and journal.
//! - **reward**: The number that an episode is trained to increase: a weighted sum of components.
//! - **rollout**: The generation of episodes with the current policy.
//! - **run**: One execution of a recipe, possibly over several attempts.
//! - **run directory**: The directory with everything durable of a run: configuration, events, journal, rollouts,
//!   checkpoints.
//! - **sample**: An episode, seen as one of several drawn for the same task.
//! - **segment**: One trajectory of an episode; agents, compaction and branches give an episode several.
//! - **session**: The calls of an agent over HTTP in one attempt at a task, under a path with a secret token; they become
//!   one episode.
//! - **span**: A range of tokens of a trajectory by one author.
//! - **speculation**: Decoding in which several drafted tokens are verified in one forward pass; the sampled tokens
//!   do not change.
//! - **split**: One of the disjoint parts of a dataset: demonstration, train or eval.
//! - **stage**: One entry of a recipe with its own method, data and number of steps.
//! - **stale**: The outcome of a group whose age exceeds the staleness bound when its batch is cut; it is never
//!   trained on.
//! - **staleness**: The difference between the version that is trained and the version that sampled; bounded by
//!   `max_staleness`.
//! - **state key**: An environment's identifier of the state in which a turn was taken; equal keys within a group
//!   mean equal states.
//! - **step**: One cycle of training: train on one batch and publish the new version.
//! - **step reward**: The environment's reward of a single turn.
//! - **surplus**: The outcome of a group that was oversampled and is not needed for a batch.
//! - **task**: A prompt with the data needed to judge a completion of it.
//! - **temperature**: The divisor of the logits in sampling and in the corresponding log-probabilities.
//! - **ticket**: A group's unique number within its stage.
//! - **timeout**: A duration after which something fails; compare *deadline*.
//! - **trajectory**: One token sequence with its authors, log-probabilities and policy versions.
//! - **truncated**: Cut off by the token limit or an abort before the policy ended its turn.
//! - **turn**: The tokens that the policy writes between two observations.
//! - **verifier**: A reward that decides by rules whether a task is solved.
//! - **version**: The number of batches that a policy was trained on and published after.
//! - **worker**: A thread or process that executes requests of an engine: a lane, a replica or a rank.
//! - **wrapper**: Code that adapts a foreign environment to the environment interface.

#[cfg(test)]
mod tests {
    #[test]
    fn terms_are_unique_and_sorted() {
        let terms: Vec<String> = include_str!("glossary.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("//! - **")?.split_once("**"))
            .map(|(term, _)| term.to_lowercase())
            .collect();
        assert!(terms.len() > 80, "only {} terms were found", terms.len());
        for pair in terms.windows(2) {
            assert!(pair[0] < pair[1], "`{}` must come after `{}`, once", pair[1], pair[0]);
        }
    }
}
