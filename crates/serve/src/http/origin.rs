//! Requests that a web page makes a browser send to this machine.

use std::net::IpAddr;

use hyper::HeaderMap;
use hyper::header::{HOST, ORIGIN};

/// True if a request names this machine as its host, and no web page of another has caused it. Without a key this keeps pages out that
/// a browser shows: their requests have an `Origin`, or the name of a host that only resolves to this machine.
pub(super) fn is_local(headers: &HeaderMap) -> bool {
    let text = |value: Option<&hyper::header::HeaderValue>| {
        value.map(|value| value.to_str().unwrap_or_default().to_owned())
    };
    let host = text(headers.get(HOST));
    let origin = text(headers.get(ORIGIN));
    let origin =
        origin.map(|origin| origin.split_once("://").map_or(String::new(), |(_, host)| host.to_owned()));
    host.into_iter().chain(origin).all(|host| is_loopback(&host))
}

/// True for an address of this machine, with or without a port.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_address = name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_other_hosts_are_recognised() {
        let local = |headers: &[(hyper::header::HeaderName, &str)]| {
            is_local(&headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect())
        };
        for host in ["localhost", "LocalHost:8000", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000"] {
            assert!(local(&[(HOST, host)]), "{host}");
            assert!(local(&[(HOST, host), (ORIGIN, &format!("http://{host}"))]), "{host}");
            assert!(!local(&[(HOST, host), (ORIGIN, "https://evil.example")]), "{host}");
            assert!(!local(&[(HOST, host), (ORIGIN, "null")]), "{host}");
        }
        for host in
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", "[::2]", ""]
        {
            assert!(!local(&[(HOST, host)]), "{host}");
        }
        assert!(local(&[]));
    }
}
