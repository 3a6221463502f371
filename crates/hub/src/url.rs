//! Addresses of redirects.

use ureq::http::Uri;

/// Scheme, host and port: the part of an address that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    /// `None` for an address without a host.
    pub(crate) fn of(address: &str) -> Option<Self> {
        let uri: Uri = address.parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        Some(Self { scheme, host: uri.host()?.to_ascii_lowercase(), port })
    }
}

/// Address of a `Location` header in the response from `base`: absolute, or relative to it.
pub(crate) fn join(base: &str, location: &str) -> Option<String> {
    let (scheme, rest) = base.split_once("://")?;
    if location.contains("://") && location.find("://") < location.find(['/', '?']) {
        return Some(location.to_owned());
    }
    if let Some(host) = location.strip_prefix("//") {
        return Some(format!("{scheme}://{host}"));
    }
    let path_at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(path_at);
    if location.starts_with('/') {
        return Some(format!("{scheme}://{host}{location}"));
    }
    let path = path.split('?').next().unwrap_or_default();
    let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
    Some(format!("{scheme}://{host}{folder}{location}"))
}

/// Escapes a path within a repository; slashes stay.
pub(crate) fn escape_path(path: &str) -> String {
    escape(path, b"/")
}

/// Escapes a revision, which is one segment of an address.
pub(crate) fn escape_segment(revision: &str) -> String {
    escape(revision, b"")
}

fn escape(text: &str, keep: &[u8]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || keep.contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push('%');
            for digit in [byte >> 4, byte & 15] {
                escaped.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_joined() {
        let base = "https://hub.example:8080/api/models/a/b?blobs=true";
        for (location, expected) in [
            ("https://other/x?u=http://y", "https://other/x?u=http://y"),
            ("//other/x", "https://other/x"),
            ("/api/models/c/d?u=http://y", "https://hub.example:8080/api/models/c/d?u=http://y"),
            ("c", "https://hub.example:8080/api/models/a/c"),
        ] {
            assert_eq!(join(base, location).as_deref(), Some(expected));
        }
        assert_eq!(join("http://host", "x").as_deref(), Some("http://host/x"));
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin = |address| Origin::of(address).unwrap();
        assert_eq!(origin("https://Hub.example/a"), origin("https://hub.example:443/b"));
        assert_ne!(origin("https://hub.example"), origin("http://hub.example"));
        assert_ne!(origin("http://hub.example"), origin("http://hub.example:8080"));
        assert_ne!(origin("http://hub.example"), origin("http://cdn.hub.example"));
        assert_eq!(Origin::of("hub.example"), None);
    }

    #[test]
    fn paths_and_revisions_are_escaped() {
        assert_eq!(escape_path("data/a b#1.parquet"), "data/a%20b%231.parquet");
        assert_eq!(escape_segment("refs/convert/parquet"), "refs%2Fconvert%2Fparquet");
    }
}
