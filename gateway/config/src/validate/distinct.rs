//! Checks that no two parts of the daemon have one place: a directory, the path of a socket, or an address.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::Fault;
use crate::sections::Config;

/// Checks directories, sockets and addresses.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    if config.paths.state == config.paths.run {
        let why = "is paths.run as well, which is empty after each boot: choose another directory"
            .to_owned();
        return Err(("paths.state".to_owned(), why));
    }
    check_sockets(&sockets(config))?;
    check_addresses(&addresses(config))
}

/// The sockets that the daemon listens on or connects to: the key that sets each, its path, and whose it is. Those that only the run
/// directory decides come first, so that the key of a fault is one that an operator has set.
fn sockets(config: &Config) -> Vec<(&'static str, PathBuf, &'static str)> {
    let mut sockets = vec![
        ("paths.run", config.paths.admin_socket(), "the admin socket"),
        (
            "containerd.address",
            config.containerd_socket(),
            "the socket of containerd",
        ),
        (
            "logkeeper.socket",
            config.logkeeper_socket(),
            "the socket of the logkeeper",
        ),
    ];
    if config.cri.enabled {
        sockets.push(("cri.socket", config.cri_socket(), "the socket of the CRI"));
    }
    if config.nomad.enabled {
        sockets.push((
            "nomad.socket",
            config.nomad_socket(),
            "the socket of the Nomad drivers",
        ));
    }
    sockets
}

fn check_sockets(sockets: &[(&str, PathBuf, &str)]) -> Result<(), Fault> {
    for (index, (key, path, _)) in sockets.iter().enumerate() {
        if let Some((_, _, other)) = sockets
            .iter()
            .take(index)
            .find(|(_, taken, _)| taken == path)
        {
            return Err((
                (*key).to_owned(),
                format!("{} is {other}: choose another path", path.display()),
            ));
        }
    }
    Ok(())
}

/// The addresses that the daemon listens on.
fn addresses(config: &Config) -> Vec<(&'static str, SocketAddr)> {
    let mut addresses = vec![("admin.listen", config.admin.listen)];
    addresses.extend(
        config
            .admin
            .metrics_listen
            .map(|address| ("admin.metrics_listen", address)),
    );
    if config.cri.enabled {
        addresses.push(("cri.streaming.listen", config.cri.streaming.listen));
    }
    addresses
}

fn check_addresses(addresses: &[(&str, SocketAddr)]) -> Result<(), Fault> {
    for (index, (key, address)) in addresses.iter().enumerate() {
        let taken = addresses
            .iter()
            .take(index)
            .find(|(_, taken)| overlap(*taken, *address));
        if let Some((other, _)) = taken {
            let why = format!("{address} is taken by {other}: choose another port");
            return Err(((*key).to_owned(), why));
        }
    }
    Ok(())
}

/// Returns whether the kernel refuses to listen on both.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let ip = one.ip().to_canonical();
    let other_ip = other.ip().to_canonical();
    let is_within =
        (ip.is_unspecified() || other_ip.is_unspecified()) && ip.is_ipv4() == other_ip.is_ipv4();
    one.port() != 0 && one.port() == other.port() && (ip == other_ip || is_within)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(change: impl FnOnce(&mut Config)) -> Option<String> {
        let mut config = Config::default();
        config.nomad.enabled = true;
        change(&mut config);
        check(&config).err().map(|(key, _)| key)
    }

    #[test]
    fn defaults_are_distinct() {
        assert_eq!(fault(|_| {}), None);
    }

    #[test]
    fn one_path_is_no_two_sockets() {
        let admin = Config::default().paths.admin_socket();
        let cri = Config::default().cri_socket();
        let of_admin = || Some(admin.clone());
        assert_eq!(
            fault(|config| config.cri.socket = of_admin()).as_deref(),
            Some("cri.socket")
        );
        assert_eq!(
            fault(|config| config.nomad.socket = of_admin()).as_deref(),
            Some("nomad.socket")
        );
        assert_eq!(
            fault(|config| config.nomad.socket = Some(cri.clone())).as_deref(),
            Some("nomad.socket")
        );
        // The same path in another spelling; a frontend that is off has no socket.
        let other_spelling = PathBuf::from(cri.display().to_string().replace("/run/", "//run/./"));
        let spelled = fault(|config| config.nomad.socket = Some(other_spelling));
        assert_eq!(spelled.as_deref(), Some("nomad.socket"));
        let off = fault(|config| {
            config.nomad.enabled = false;
            config.nomad.socket = Some(cri);
        });
        assert_eq!(off, None);
    }

    #[test]
    fn state_is_not_what_each_boot_empties() {
        let same = fault(|config| config.paths.state.clone_from(&config.paths.run));
        assert_eq!(same.as_deref(), Some("paths.state"));
    }

    #[test]
    fn addresses_overlap_if_the_kernel_refuses_both() {
        for (one, other, expected) in [
            ("127.0.0.1:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("[::]:1", "[::1]:1", true),
            ("127.0.0.1:1", "127.0.0.1:2", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("127.0.0.1:1", "127.0.0.2:1", false),
            ("0.0.0.0:1", "[::1]:1", false),
        ] {
            let (one, other) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(
                (overlap(one, other), overlap(other, one)),
                (expected, expected),
                "{one} {other}"
            );
        }
        let streams = fault(|config| config.cri.streaming.listen = config.admin.listen);
        assert_eq!(streams.as_deref(), Some("cri.streaming.listen"));
    }
}
