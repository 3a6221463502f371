//! Lengths of prompts, measured before a run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rloom_core::Task;
use rloom_data::{DataError, Dataset, Location, RowRules};
use rloom_env::{RowLength, Unrendered, find_unrendered, row_length};
use rloom_text::{TextError, Tokenizer};

/// Tasks that a thread measures at once.
const CHUNK: u64 = 256;
/// Interval of progress reports.
const TICK: Duration = Duration::from_millis(100);

/// A task whose prompt cannot be used.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The task could not be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Data(#[from] DataError),
    /// The prompt could not be rendered or tokenised.
    #[error("{at}: {source}")]
    #[diagnostic(forward(source))]
    Text {
        /// The row.
        at: Location,
        /// The tokenizer's error.
        source: TextError,
    },
    /// The chat template drops a part of the conversation.
    #[error("{at}: {part}, which the chat template does not render")]
    #[diagnostic(help(
        "remove it from the data or write it as text, or use a model whose chat template renders it"
    ))]
    Unrendered {
        /// The row.
        at: Location,
        /// The part.
        part: Unrendered,
    },
    /// A prompt without tokens.
    #[error("{at}: the prompt is empty: the policy's first token would have no prefix")]
    Empty {
        /// The row.
        at: Location,
    },
    /// A prompt that leaves no room for a completion.
    #[error(
        "{at}: the prompt has {prompt} tokens, but only {room} fit: the context is {context} and a completion has up to \
         {max_new_tokens}; {count} of {measured} prompts exceed {room} tokens, the longest has {longest}"
    )]
    #[diagnostic(help("{}", too_long_hint(*is_generated, *room)))]
    PromptTooLong {
        /// The first row.
        at: Location,
        /// Tokens of its prompt.
        prompt: u32,
        /// Most tokens of a prompt that fits.
        room: usize,
        /// Context length of the model in tokens.
        context: usize,
        /// Most new tokens of a turn.
        max_new_tokens: usize,
        /// Number of prompts that do not fit.
        count: usize,
        /// Number of measured prompts.
        measured: usize,
        /// Tokens of the longest prompt.
        longest: u32,
        /// True for the tasks of a generator.
        is_generated: bool,
    },
    /// A row that does not fit into the context.
    #[error(
        "{at}: prompt and completion have {prompt} + {demonstration} tokens, but only {room} fit; {count} of {measured} rows \
         exceed it, the longest has {longest} tokens"
    )]
    #[diagnostic(help(
        "set `data.too_long = \"drop\"`, `\"keep_start\"` or `\"keep_end\"` to drop or cut such rows, or use a model with a \
         longer context"
    ))]
    DemonstrationTooLong {
        /// The first row.
        at: Location,
        /// Tokens of its prompt.
        prompt: u32,
        /// Tokens of its completion.
        demonstration: u32,
        /// Most tokens of a row.
        room: usize,
        /// Number of rows that do not fit.
        count: usize,
        /// Number of measured rows.
        measured: usize,
        /// Tokens of the longest row.
        longest: u64,
    },
    /// A limit that no prompt satisfies.
    #[error(
        "all {prompts} prompts are longer than `max_prompt_tokens = {limit}`; the shortest has {shortest} tokens"
    )]
    #[diagnostic(help("set `data.max_prompt_tokens` to at least {shortest}"))]
    AllDropped {
        /// Number of prompts.
        prompts: usize,
        /// The limit.
        limit: u64,
        /// Tokens of the shortest prompt.
        shortest: u32,
    },
    /// Rows of which none fits.
    #[error("all {rows} rows have more than {room} tokens; the shortest has {shortest}")]
    #[diagnostic(help("raise `data.max_tokens`, or use a model with a longer context"))]
    AllTooLong {
        /// Number of rows.
        rows: usize,
        /// Most tokens of a row.
        room: usize,
        /// Tokens of the shortest row.
        shortest: u64,
    },
}

fn too_long_hint(is_generated: bool, room: usize) -> String {
    let drop = if is_generated || room == 0 {
        String::new()
    } else {
        format!("set `data.max_prompt_tokens = {room}` to drop longer prompts, ")
    };
    format!("{drop}lower `sampling.max_new_tokens`, or use a model with a longer context")
}

/// Number of tokens of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskLength {
    /// Tokens of the prompt, as the environment starts with it.
    pub prompt: u32,
    /// Tokens of the demonstration's first turn, or of the longer completion of a preference; 0 unless demonstrations are
    /// measured.
    pub demonstration: u32,
    /// The fewest tokens after the prompt that can be learned from; 0 if the prompt itself carries loss.
    pub least: u32,
}

impl TaskLength {
    /// Tokens of prompt and demonstration.
    pub fn total(self) -> u64 {
        u64::from(self.prompt) + u64::from(self.demonstration)
    }
}

/// Room for the prompts of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptRoom {
    /// A completion follows, of up to `max_new_tokens` in its first turn.
    Completion {
        /// Context length of the model in tokens.
        context: usize,
        /// Most new tokens of a turn.
        max_new_tokens: usize,
    },
    /// A demonstration follows.
    Demonstration {
        /// Most tokens of both.
        room: usize,
    },
}

impl PromptRoom {
    /// Most tokens of a prompt, and of its demonstration if nothing is sampled.
    pub fn tokens(self) -> usize {
        match self {
            Self::Completion { context, max_new_tokens } => context.saturating_sub(max_new_tokens),
            Self::Demonstration { room } => room,
        }
    }

    /// True if the prompt leaves room for a completion, and a demonstration of it fits into the context.
    fn fits(self, length: TaskLength) -> bool {
        match self {
            Self::Completion { context, .. } => {
                length.prompt as usize <= self.tokens() && length.total() <= context as u64
            }
            Self::Demonstration { room } => length.total() <= room as u64,
        }
    }
}

/// Tasks to measure: `count` of the first `span` tasks of a dataset, evenly spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// Number of tasks to select from.
    pub span: u64,
    /// Number of tasks to measure, at most `span`.
    pub count: u64,
}

impl Selection {
    /// The first `span` tasks.
    pub fn first(span: u64) -> Self {
        Self { span, count: span }
    }

    /// Position of the selected task number `index`.
    fn position(self, index: u64) -> u64 {
        (u128::from(index) * u128::from(self.span) / u128::from(self.count.max(1))) as u64
    }
}

/// Renders and tokenises the selected tasks on `threads` threads, and keeps only the numbers of tokens. `progress` receives
/// the number of measured tasks and returns false to stop; the result is then `None`.
///
/// # Errors
///
/// The first task, in the order of the dataset, whose prompt cannot be used.
pub fn measure_prompts(
    dataset: &Dataset,
    tokenizer: &Tokenizer,
    selection: Selection,
    with_demonstrations: bool,
    threads: usize,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<Vec<TaskLength>>, PromptError> {
    let (next, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let chunks = selection.count.div_ceil(CHUNK);
    let measure = |chunk: u64| {
        let indices = chunk * CHUNK..((chunk + 1) * CHUNK).min(selection.count);
        let one = |index| length_of(dataset, tokenizer, selection.position(index), with_demonstrations);
        indices.map(one).collect::<Result<Vec<TaskLength>, PromptError>>()
    };
    let mut measured: Vec<Option<Result<Vec<TaskLength>, PromptError>>> = Vec::new();
    measured.resize_with(chunks as usize, || None);
    let mut is_stopped = false;
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads.max(1).min(chunks as usize) {
            let (sender, next, ends, measure) = (sender.clone(), &next, &ends, &measure);
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    // Chunks are taken in order: those before the first failure are complete.
                    let chunk = next.fetch_add(1, Ordering::Relaxed);
                    if chunk >= chunks {
                        return;
                    }
                    let result = measure(chunk);
                    if result.is_err() {
                        ends.store(true, Ordering::Relaxed);
                    }
                    if sender.send((chunk, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut done = 0;
        loop {
            match receiver.recv_timeout(TICK) {
                Ok((chunk, result)) => {
                    done += result.as_ref().map_or(0, |lengths| lengths.len() as u64);
                    measured[chunk as usize] = Some(result);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !progress(done) {
                is_stopped = true;
                ends.store(true, Ordering::Relaxed);
            }
        }
    });
    if is_stopped {
        return Ok(None);
    }
    let mut lengths = Vec::with_capacity(selection.count as usize);
    // A failure ends the measurement: chunks after it may be missing.
    for chunk in measured.into_iter().flatten() {
        lengths.extend(chunk?);
    }
    Ok(Some(lengths))
}

fn length_of(
    dataset: &Dataset,
    tokenizer: &Tokenizer,
    position: u64,
    with_demonstration: bool,
) -> Result<TaskLength, PromptError> {
    let mut task = dataset.get(position)?;
    if !with_demonstration {
        // Nothing reads it.
        task.demonstration = None;
    }
    let at = || dataset.location(position);
    let (unrendered, length) = match tokens_of(tokenizer, &task, dataset.rules(position)) {
        Ok(measured) => measured,
        Err(source) => return Err(PromptError::Text { at: at()?, source }),
    };
    if let Some(part) = unrendered {
        return Err(PromptError::Unrendered { at: at()?, part });
    }
    if length.prompt == 0 {
        return Err(PromptError::Empty { at: at()? });
    }
    Ok(length)
}

fn tokens_of(
    tokenizer: &Tokenizer,
    task: &Task,
    rules: RowRules,
) -> Result<(Option<Unrendered>, TaskLength), TextError> {
    let unrendered = match &task.demonstration {
        Some(demonstration) => {
            let of = |completion| find_unrendered(tokenizer, &task.with_demonstration(completion));
            demonstration.completions().into_iter().map(of).find_map(Result::transpose).transpose()?
        }
        None => find_unrendered(tokenizer, task)?,
    };
    if unrendered.is_some() {
        return Ok((unrendered, TaskLength { prompt: 0, demonstration: 0, least: 0 }));
    }
    let RowLength { prompt, completion, least } = row_length(tokenizer, task, rules)?;
    let length = TaskLength { prompt: prompt as u32, demonstration: completion as u32, least: least as u32 };
    Ok((None, length))
}

/// Checks that all measured tasks fit.
pub fn check_room(
    dataset: &Dataset,
    lengths: &[TaskLength],
    selection: Selection,
    room: PromptRoom,
) -> Result<(), PromptError> {
    let Some(first) = lengths.iter().position(|&length| !room.fits(length)) else { return Ok(()) };
    let at = dataset.location(selection.position(first as u64))?;
    let TaskLength { prompt, demonstration, .. } = lengths[first];
    let (count, measured) = (lengths.iter().filter(|&&length| !room.fits(length)).count(), lengths.len());
    let demonstration_too_long = |room| PromptError::DemonstrationTooLong {
        at: at.clone(),
        prompt,
        demonstration,
        room,
        count,
        measured,
        longest: lengths.iter().map(|length| length.total()).max().unwrap_or(0),
    };
    Err(match room {
        PromptRoom::Completion { context, .. } if prompt as usize <= room.tokens() => {
            demonstration_too_long(context)
        }
        PromptRoom::Completion { context, max_new_tokens } => PromptError::PromptTooLong {
            at,
            prompt,
            room: room.tokens(),
            context,
            max_new_tokens,
            count,
            measured,
            longest: lengths.iter().map(|length| length.prompt).max().unwrap_or(0),
            is_generated: dataset.is_generated(),
        },
        PromptRoom::Demonstration { room } => demonstration_too_long(room),
    })
}
