//! What a node offers: its name, its address, and its resources.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use serde::{Deserialize, Serialize};

/// Most GPUs of a machine that the driver numbers.
const MAX_GPUS: usize = 255;

/// Resources of a node, and the address by which other nodes reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOffer {
    /// Its host name.
    pub hostname: String,
    /// Address of the interface on its route to the controller.
    pub address: IpAddr,
    /// Name of that interface, such as `eth0`.
    pub interface: String,
    /// Processor cores that its processes may use.
    pub cores: usize,
    /// Memory that its processes may use, in bytes; 0 where unknown.
    pub memory_bytes: u64,
    /// Number of NVIDIA GPUs.
    pub gpus: usize,
    /// Value of `CUDA_VISIBLE_DEVICES` in the environment of the daemon, which restricts the GPUs.
    pub visible_devices: Option<String>,
}

impl NodeOffer {
    /// Value of `CUDA_VISIBLE_DEVICES` for the GPUs with these numbers among those of the node.
    pub fn visible_gpus(&self, slots: &Range<usize>) -> String {
        let names: Option<Vec<&str>> = self.visible_devices.as_ref().map(|names| names.split(',').collect());
        let name = |slot: usize| match names.as_ref().and_then(|names| names.get(slot)) {
            Some(name) => name.trim().to_owned(),
            None => slot.to_string(),
        };
        slots.clone().map(name).collect::<Vec<_>>().join(",")
    }
}

/// Host name of this machine.
pub fn hostname() -> String {
    nix::unistd::gethostname()
        .map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Number of NVIDIA GPUs of this machine.
pub fn gpus() -> usize {
    let has = |index: &usize| Path::new(&format!("/dev/nvidia{index}")).exists();
    (0..MAX_GPUS).take_while(has).count()
}

/// Describes this machine; `local` is this end of the connection to the controller.
pub(crate) fn describe(local: SocketAddr) -> Result<NodeOffer, String> {
    let address = local.ip().to_canonical();
    let visible_devices = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let visible = visible_devices
        .as_deref()
        .map(|names| names.split(',').filter(|name| !name.trim().is_empty()).count());
    let cores = std::thread::available_parallelism().map_err(|error| format!("its processors: {error}"))?;
    Ok(NodeOffer {
        hostname: hostname(),
        address,
        interface: interface_of(address)?,
        cores: cores.get(),
        memory_bytes: memory_bytes(),
        gpus: visible.unwrap_or(usize::MAX).min(gpus()),
        visible_devices,
    })
}

/// Name of the interface that has an address.
fn interface_of(address: IpAddr) -> Result<String, String> {
    let interfaces = getifaddrs().map_err(|error| format!("its network interfaces: {error}"))?;
    let ip = |storage: nix::sys::socket::SockaddrStorage| {
        let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    };
    let mut interfaces = interfaces.filter(|interface| interface.address.and_then(ip) == Some(address));
    let found = interfaces.next().map(|interface| interface.interface_name);
    found.ok_or_else(|| format!("no network interface has the address {address}"))
}

/// Memory of the machine, or that of this process's control group, if that is less.
fn memory_bytes() -> u64 {
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // In a container, the own group is the root of the mounted tree.
    let limits = [format!("/sys/fs/cgroup/{group}/memory.max"), "/sys/fs/cgroup/memory.max".to_owned()];
    let limits = limits.iter().filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    limits.chain(total(&meminfo)).min().unwrap_or_default()
}

fn total(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_found_by_their_address() {
        let loopback = interface_of("127.0.0.1".parse().unwrap()).unwrap();
        assert!(loopback.starts_with("lo"), "{loopback}");
        let error = interface_of("192.0.2.1".parse().unwrap()).unwrap_err();
        assert_eq!(error, "no network interface has the address 192.0.2.1");
        // A listener for both families reports addresses of the older one in the form of the newer one.
        let offer = describe("[::ffff:127.0.0.1]:1".parse().unwrap()).unwrap();
        assert_eq!((offer.address, offer.interface), ("127.0.0.1".parse().unwrap(), loopback));
    }

    #[test]
    fn the_memory_of_the_machine_is_read() {
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       16 kB\n"), Some(16 << 10));
        assert_eq!(total("MemFree: 1 kB\n"), None);
    }
}
