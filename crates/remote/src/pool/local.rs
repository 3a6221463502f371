//! Published folders on the machine of a replica.

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use rloom_engine::{PublishedPolicy, PublishedWeights, WeightFolder};
use tokio::time::Instant;

use super::replica::{Failure, Supervisor, not_sent};
use super::state::Target;
use super::transfer::{Published, Source};

/// The process of a replica and its machine.
pub trait Restart: fmt::Debug + Send + Sync {
    /// Ends the process if it still runs, starts it and returns when it answers. The error quotes the end of its output.
    fn restart(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>>;

    /// Copies a published folder to the replica's machine before the replica loads it. The default leaves it where it is.
    fn localize<'a>(
        &'a self,
        published: &'a PublishedPolicy,
        folder: &'a Path,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<Localized, String>> + Send + 'a>> {
        let _ = (published, folder, deadline);
        Box::pin(async { Ok(Localized::Published) })
    }
}

/// Place from which a replica loads a published folder.
pub enum Localized {
    /// The published folder.
    Published,
    /// A copy, which is kept as long as this handle.
    Copy(Box<dyn AsRef<Path> + Send + Sync>),
    /// The published folder, because a copy could not be made.
    NoCopy {
        /// The reason.
        reason: String,
    },
}

impl fmt::Debug for Localized {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Published => formatter.write_str("Published"),
            Self::Copy(copy) => formatter.debug_tuple("Copy").field(&(**copy).as_ref()).finish(),
            Self::NoCopy { reason } => formatter.debug_struct("NoCopy").field("reason", reason).finish(),
        }
    }
}

/// A published folder that a replica can load.
pub(super) struct LocalFolder {
    folder: Arc<WeightFolder>,
    place: Localized,
}

impl LocalFolder {
    pub(super) fn path(&self) -> &Path {
        match &self.place {
            Localized::Copy(copy) => (**copy).as_ref(),
            Localized::Published | Localized::NoCopy { .. } => self.folder.path(),
        }
    }
}

impl Supervisor {
    /// The published folder of a target on the replica's machine; `None` if the weights have another form.
    pub(super) async fn local_publication(&self, target: &Target) -> Result<Option<LocalFolder>, Failure> {
        match &target.published.weights {
            PublishedWeights::Folder(folder) | PublishedWeights::Adapter(folder) => {
                self.localize(target, Arc::clone(folder)).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// A folder of a target on the replica's machine.
    pub(super) async fn localize(
        &self,
        target: &Target,
        folder: Arc<WeightFolder>,
    ) -> Result<LocalFolder, Failure> {
        let Some(restart) = &self.restart else {
            return Ok(LocalFolder { folder, place: Localized::Published });
        };
        let deadline = Instant::now() + self.shared.timings.load;
        let place = restart.localize(&target.published, folder.path(), deadline).await;
        let place = place.map_err(Failure::Failed)?;
        if let Localized::NoCopy { reason } = &place {
            self.shared.lock().notice(self.id, &format!("loads weights from the shared folder: {reason}"));
        }
        Ok(LocalFolder { folder, place })
    }

    /// The weights of a target, where the replica can load them.
    pub(super) async fn source(
        &self,
        target: &Target,
        local: Option<LocalFolder>,
        needs_folder: bool,
    ) -> Result<Source, Failure> {
        if let Some(local) = local {
            return Ok(Source::Folder(local));
        }
        match Published::of(&target.published, needs_folder).await {
            Ok(Published::Folder(folder)) => self.localize(target, folder).await.map(Source::Folder),
            Ok(Published::Live(sender)) => Ok(Source::Live(sender)),
            Err(error) => Err(not_sent(target, &error)),
        }
    }
}
