//! Hub access and download settings.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Address of the public hub.
const PUBLIC_HUB: &str = "https://huggingface.co";

/// Hub access and download settings.
#[derive(Clone)]
pub struct HubOptions {
    /// Root address of the hub.
    pub endpoint: String,
    /// Bearer token for private and gated repositories. Sent to the endpoint only, not to redirect targets.
    pub token: Option<String>,
    /// Folder of the downloads, shared with Python's `huggingface_hub`.
    pub cache: PathBuf,
    /// Reads the cache only, without network.
    pub offline: bool,
    /// Timeout for a connection, a response, or more bytes; also for another process that downloads the same file and
    /// makes no progress.
    pub timeout: Duration,
    /// Number of consecutive retries without progress.
    pub retries: u32,
    /// Delay before the first retry; doubled each time.
    pub retry_wait: Duration,
}

impl fmt::Debug for HubOptions {
    /// Omits the token, which must not appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubOptions")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("cache", &self.cache)
            .field("offline", &self.offline)
            .field("timeout", &self.timeout)
            .field("retries", &self.retries)
            .field("retry_wait", &self.retry_wait)
            .finish()
    }
}

impl HubOptions {
    /// Options for the public hub and a cache folder, without a token.
    pub fn new(cache: PathBuf) -> Self {
        Self {
            endpoint: PUBLIC_HUB.into(),
            token: None,
            cache,
            offline: false,
            timeout: Duration::from_secs(30),
            retries: 5,
            retry_wait: Duration::from_millis(500),
        }
    }

    /// Options from the environment variables of `huggingface_hub`, with the same defaults.
    ///
    /// | variable | effect |
    /// | --- | --- |
    /// | `HF_ENDPOINT` | address of the hub; default: the public hub |
    /// | `HF_TOKEN` | token; otherwise read from the file `HF_TOKEN_PATH`, by default `token` in `HF_HOME` |
    /// | `HF_HUB_OFFLINE` | `1`: no network |
    /// | `HF_HUB_CACHE` | folder of the downloads, by default `hub` in `HF_HOME` |
    /// | `HF_HOME` | by default `huggingface` in `XDG_CACHE_HOME` or `~/.cache` |
    /// | `HF_HUB_DISABLE_IMPLICIT_TOKEN` | `1`: no token is sent |
    pub fn from_env() -> Self {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let user = set("HOME").map(PathBuf::from);
        let path = |name: &str| set(name).map(|value| expand(PathBuf::from(value), user.as_deref()));
        let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
        let is_true = |name: &str| {
            text(name).is_some_and(|v| ["1", "ON", "YES", "TRUE"].contains(&v.to_uppercase().as_str()))
        };
        let home = path("HF_HOME").or_else(|| caches(&variable).map(|caches| caches.join("huggingface")));
        let home = home.unwrap_or_else(|| PathBuf::from(".huggingface"));
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let token_file =
            || fs::read_to_string(path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"))).ok();
        let token = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")).or_else(token_file);
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        let offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE");
        let mut options = Self::new(cache.unwrap_or_else(|| home.join("hub")));
        if let Some(endpoint) = text("HF_ENDPOINT") {
            options.endpoint = endpoint;
        }
        let token = token.filter(|_| !is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"));
        Self { token, offline, ..options }
    }
}

/// Folder of the user's caches: `XDG_CACHE_HOME`, or `.cache` in the user's folder.
pub fn cache_home() -> Option<PathBuf> {
    caches(&|name| std::env::var_os(name))
}

fn caches(variable: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = set("HOME");
    set("XDG_CACHE_HOME")
        .map(|caches| expand(caches, user.as_deref()))
        .or_else(|| user.as_ref().map(|user| user.join(".cache")))
}

/// Replaces a leading `~` with the user's folder.
fn expand(path: PathBuf, user: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), user) {
        (Ok(rest), Some(user)) => user.join(rest),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(variables: &[(&str, &str)]) -> HubOptions {
        HubOptions::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn the_public_hub_is_the_default() {
        let plain = options(&[("HOME", "/home/u")]);
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert_eq!(plain.cache, Path::new("/home/u/.cache/huggingface/hub"));
        assert!(plain.token.is_none() && !plain.offline);
        assert_eq!(options(&[("HF_ENDPOINT", "http://mirror")]).endpoint, "http://mirror");
        assert_eq!(options(&[("HF_ENDPOINT", "")]).endpoint, "https://huggingface.co", "empty is unset");
    }

    #[test]
    fn the_cache_is_that_of_huggingface_hub() {
        let user = ("HOME", "/home/u");
        for (variable, value, expected) in [
            ("XDG_CACHE_HOME", "/x", "/x/huggingface/hub"),
            ("HF_HOME", "~/hf", "/home/u/hf/hub"),
            ("HUGGINGFACE_HUB_CACHE", "/old", "/old"),
            ("HF_HUB_CACHE", "/c", "/c"),
        ] {
            assert_eq!(options(&[user, (variable, value)]).cache, Path::new(expected), "{variable}");
        }
        let both = options(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h"), ("XDG_CACHE_HOME", "/x")]);
        assert_eq!(both.cache, Path::new("/c"));
    }

    #[test]
    fn a_token_is_found_in_the_environment_or_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let home = ("HF_HOME", folder.path().to_str().unwrap());
        assert_eq!(options(&[home]).token, None);
        fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(options(&[home]).token.as_deref(), Some("hf_file"));
        assert_eq!(options(&[home, ("HF_TOKEN", "hf_set")]).token.as_deref(), Some("hf_set"));
        assert_eq!(options(&[home, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).token, None);
        let other = folder.path().join("other");
        fs::write(&other, "hf_other").unwrap();
        let other = ("HF_TOKEN_PATH", other.to_str().unwrap());
        assert_eq!(options(&[home, other]).token.as_deref(), Some("hf_other"));
    }

    #[test]
    fn offline_is_a_true_value() {
        for value in ["1", "true", "YES", "on"] {
            assert!(options(&[("HF_HUB_OFFLINE", value)]).offline, "{value}");
        }
        assert!(options(&[("TRANSFORMERS_OFFLINE", "1")]).offline);
        assert!(!options(&[("HF_HUB_OFFLINE", "0")]).offline);
    }

    #[test]
    fn debug_output_omits_the_token() {
        let options = HubOptions { token: Some("hf_secret".into()), ..HubOptions::new("cache".into()) };
        assert!(!format!("{options:?}").contains("secret"));
    }
}
