//! Models and data sets of a Hugging Face hub.
//!
//! [`Hub::model`] returns the folder of a model: a local folder, or `organisation/name[@revision]` on the hub.
//! [`Hub::dataset_files`] returns the data files of one split of `hf:organisation/name[/subset][:split][@revision]`, in the
//! order in which Python's `datasets` reads them. [`Hub::pin_model`] and [`Hub::pin_dataset`] replace the revision with its
//! commit, so that a resumed run reads the same files.
//!
//! Files are kept in the cache of Python's `huggingface_hub`, in its layout: a repository downloaded by either program is
//! found by the other without network. Interrupted downloads are resumed, verified (size, and SHA-256 if the hub
//! provides it) and renamed into place. The token is sent to the hub's own address only, never to the target of a
//! redirect. Every wait has a timeout.

mod cache;
mod dataset;
mod download;
mod error;
mod http;
mod hub;
mod listing;
mod lock;
mod model;
mod options;
mod reference;
mod url;

pub use dataset::DefaultSplit;
pub use error::{CardError, HubError, ListingError, TransferError};
pub use hub::{Hub, HubEvent};
pub use options::{HubOptions, cache_home};
pub use reference::{DatasetReference, ModelReference, ReferenceError, Repository, RepositoryKind};
