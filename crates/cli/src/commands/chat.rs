//! `rloom chat`: a conversation in the terminal, with answers streamed token by token.

mod session;

use std::io::{self, BufRead, IsTerminal, Write};

use rloom_core::ChatMessage;
use rloom_run::Policy;
use rloom_text::{IncrementalDecoder, RenderOptions, TextError};

use super::policy;
use crate::arguments::Chat;
use crate::failure::Failure;
use crate::output::{BOLD, FAINT, Output};
use crate::progress::downloads;
use session::Session;

pub(crate) fn run(arguments: &Chat, output: Output) -> Result<(), Failure> {
    let hub = downloads::hub(output);
    let policy = policy::open(
        &arguments.model,
        arguments.sampling.dtype.map(Into::into),
        policy::Use::Sampling,
        &hub,
        output,
    )?;
    policy
        .tokenizer
        .require_chat_template()
        .map_err(|error| Failure::usage(error).hint("`rloom generate` completes plain text"))?;
    let sampling =
        policy::sampling(&arguments.sampling, arguments.length.max_new_tokens, &policy.generation, &[])?;
    let ctx = rloom_run::context(arguments.sampling.threads).map_err(Failure::failed)?;
    let model = policy.model().map_err(Failure::from_run)?;
    let session = Session::new(&policy, model, ctx, sampling, arguments.sampling.seed);
    let mut conversation = Conversation {
        policy: &policy,
        session,
        system: arguments.system.clone(),
        history: Vec::new(),
        output,
    };
    conversation.reset();
    output.info(&output.paint(FAINT, "/reset clears the conversation; /exit or Ctrl-D quits"));
    loop {
        if io::stdin().is_terminal() && !output.json {
            let _ = write!(io::stderr().lock(), "{} ", output.paint(BOLD, ">"));
        }
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line).map_err(Failure::failed_text)? == 0 {
            return Ok(());
        }
        match line.trim() {
            "" => {}
            "/exit" => return Ok(()),
            "/reset" => {
                conversation.reset();
                output.info("conversation cleared");
            }
            question => conversation.turn(question)?,
        }
    }
}

struct Conversation<'p> {
    policy: &'p Policy,
    session: Session<'p>,
    system: Option<String>,
    history: Vec<ChatMessage>,
    output: Output,
}

impl Conversation<'_> {
    fn reset(&mut self) {
        self.history = self.system.iter().map(|text| ChatMessage::new("system", text)).collect();
        self.session.clear();
    }

    /// Generates and streams the answer to a question.
    fn turn(&mut self, question: &str) -> Result<(), Failure> {
        let tokens = self.append_question(question)?;
        if let Err(full) = self.session.append(&tokens) {
            self.output.warn(&format!("{full}; /reset starts a new conversation"));
            self.history.pop();
            return Ok(());
        }
        let mut decoder = IncrementalDecoder::new(&self.policy.tokenizer, true);
        let mut answer = String::new();
        let mut tokens = Vec::new();
        while let Some(token) = self.session.next().map_err(Failure::failed)? {
            tokens.push(token);
            let piece = decoder.push(token).map_err(Failure::failed)?;
            self.show(&piece)?;
            answer.push_str(&piece);
        }
        let rest = decoder.flush().map_err(Failure::failed)?;
        self.show(&rest)?;
        answer.push_str(&rest);
        self.history.push(ChatMessage::new("assistant", &answer));
        if self.output.json {
            return self
                .output
                .json(&serde_json::json!({"question": question, "answer": answer, "tokens": tokens}));
        }
        self.output.data("")
    }

    fn show(&self, piece: &str) -> Result<(), Failure> {
        if self.output.json || piece.is_empty() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        write!(out, "{}", self.output.model_text(piece)).and_then(|()| out.flush()).map_err(Failure::Output)
    }

    /// Adds the question to the history and returns the tokens to append to the session. Earlier turns are not
    /// tokenised again, except for templates that rewrite them (Qwen3's removes earlier reasoning).
    fn append_question(&mut self, question: &str) -> Result<Vec<u32>, Failure> {
        let tokenizer = &self.policy.tokenizer;
        let template = tokenizer.require_chat_template().map_err(Failure::failed)?;
        let new = [ChatMessage::new("user", question)];
        let options = RenderOptions::prompt();
        let answered = self.history.last().is_some_and(|m| m.role == "assistant");
        let next = if answered {
            template.next_turn(&self.history, &new, &self.session.turn_end(), &options)
        } else {
            Err(TextError::NotPrefixPreserving { position: 0 })
        };
        self.history.extend(new);
        let text = match next {
            Ok(text) => text,
            Err(TextError::NotPrefixPreserving { .. }) => {
                self.session.clear();
                template.render(&self.history, &options).map_err(Failure::failed)?
            }
            Err(error) => return Err(Failure::failed(error)),
        };
        tokenizer.encode(&text, false).map_err(Failure::failed)
    }
}
