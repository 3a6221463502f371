//! The sessions of a server, by their tokens.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};

use super::open::{OpenSession, SessionSpec, SessionStatus};
use super::settings::SessionSettings;
use super::state::Session;
use crate::http::ApiKey;
use crate::model::ServedModel;
use crate::problem::{Problem, ProblemKind};
use crate::{ServeError, session::canonical::Digest};

/// Ended sessions whose tokens are remembered, so that their clients learn that they have ended.
const MAX_ENDED: usize = 65_536;

/// The sessions of a server. Clones share them.
#[derive(Clone)]
pub struct Sessions(Arc<Registry>);

struct Registry {
    model: Arc<ServedModel>,
    settings: SessionSettings,
    tokens: Mutex<Tokens>,
}

/// Tokens by their digest: a lookup that fails takes a time that says nothing about other tokens.
#[derive(Default)]
struct Tokens {
    open: HashMap<Digest, (ApiKey, Arc<Session>)>,
    ended: HashSet<Digest>,
    /// `ended`, the oldest first.
    order: VecDeque<Digest>,
    /// Sessions so far.
    number: u64,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("open", &self.tokens().open.len()).finish_non_exhaustive()
    }
}

impl Sessions {
    /// No sessions yet. They answer with `model`'s tokenizer and chat template.
    pub fn new(model: Arc<ServedModel>, settings: SessionSettings) -> Self {
        Self(Arc::new(Registry { model, settings, tokens: Mutex::default() }))
    }

    /// Opens a session.
    ///
    /// # Errors
    ///
    /// Too many open sessions, or no random bytes for the token.
    pub fn open(&self, spec: SessionSpec) -> Result<OpenSession, ServeError> {
        let token = ApiKey::random()?;
        let mut tokens = self.tokens();
        let limit = self.0.settings.max_sessions;
        if tokens.open.len() >= limit {
            return Err(ServeError::TooManySessions { limit });
        }
        tokens.number += 1;
        let model = Arc::clone(&self.0.model);
        let session = Arc::new(Session::new(model, self.0.settings.clone(), spec, tokens.number));
        tokens.open.insert(digest(token.reveal().as_bytes()), (token.clone(), Arc::clone(&session)));
        Ok(OpenSession(Registered { sessions: self.clone(), token, session }))
    }

    /// Number of open sessions.
    pub fn count(&self) -> usize {
        self.tokens().open.len()
    }

    /// The model that answers.
    pub(crate) fn model(&self) -> &Arc<ServedModel> {
        &self.0.model
    }

    /// The session with a token.
    pub(crate) fn find(&self, token: &str) -> Result<Arc<Session>, Problem> {
        let digest = digest(token.as_bytes());
        let tokens = self.tokens();
        match tokens.open.get(&digest) {
            Some((own, session)) if own.equals(token.as_bytes()) => Ok(Arc::clone(session)),
            _ if tokens.ended.contains(&digest) => Err(gone("it has ended")),
            _ => Err(Problem::new(ProblemKind::NotFound, "there is no session with this token")),
        }
    }

    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.0.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of a request to a session that has ended.
pub(crate) fn gone(reason: &str) -> Problem {
    Problem::new(ProblemKind::Gone, format!("the session is over: {reason}"))
}

fn digest(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

/// The place of an open session among the others. Dropping it ends the session.
pub(super) struct Registered {
    sessions: Sessions,
    pub(super) token: ApiKey,
    pub(super) session: Arc<Session>,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("token", &self.token).finish_non_exhaustive()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.session.seal(SessionStatus::Failed { message: "it was closed".to_owned() });
        let digest = digest(self.token.reveal().as_bytes());
        let mut tokens = self.sessions.tokens();
        tokens.open.remove(&digest);
        tokens.ended.insert(digest);
        tokens.order.push_back(digest);
        if tokens.order.len() > MAX_ENDED
            && let Some(oldest) = tokens.order.pop_front()
        {
            tokens.ended.remove(&oldest);
        }
    }
}
