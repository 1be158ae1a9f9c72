//! The contents of sandbox files, and their atomic replacement.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;

use super::*;

fn strings(values: &[&str]) -> Vec<String> {
    values.iter().map(|v| (*v).to_owned()).collect()
}

#[test]
fn hosts_file_has_localhost_sandbox_and_extra_entries() {
    let ips = ["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
    let extra = [HostEntry {
        ip: "192.0.2.1".parse().unwrap(),
        names: strings(&["db", "db.example"]),
    }];
    let expected = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
                    fe00::\tip6-localnet\nff00::\tip6-mcastprefix\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n\
                    10.0.0.7\tweb.example web\nfd00::7\tweb.example web\n192.0.2.1\tdb db.example\n";
    assert_eq!(hosts("web.example", &ips, &extra, true).unwrap(), expected);
    assert_eq!(
        hosts("web", &ips[..1], &[], false).unwrap(),
        "127.0.0.1\tlocalhost\n10.0.0.7\tweb\n"
    );
    assert_eq!(hosts("web", &[], &[], false).unwrap(), LOOPBACK);
}

#[test]
fn resolv_conf_has_a_line_per_given_kind() {
    let dns = DnsConfig {
        servers: strings(&["10.0.0.10", "fe80::1%eth0"]),
        searches: strings(&["a.example", "."]),
        options: strings(&["ndots:5", "edns0"]),
    };
    let expected = "search a.example .\nnameserver 10.0.0.10\nnameserver fe80::1%eth0\noptions ndots:5 edns0\n";
    assert_eq!(resolv_conf(&dns).unwrap(), expected);
    assert_eq!(resolv_conf(&DnsConfig::default()).unwrap(), "");
}

#[test]
fn values_with_line_breaks_are_rejected() {
    for name in ["", "a b", "a\nb", "-a", ".a", "a/b", "ä", &"x".repeat(65)] {
        assert!(hostname(name).is_err(), "{name:?}");
        assert!(hosts(name, &[], &[], true).is_err(), "{name:?}");
    }
    assert_eq!(hostname("node_1.example").unwrap(), "node_1.example\n");
    for server in [
        "",
        "dns.example",
        "10.0.0.1\nsearch x",
        "10.0.0.1 ",
        "10.0.0.1%eth0",
        "fe80::1%",
    ] {
        assert!(
            resolv_conf(&DnsConfig {
                servers: strings(&[server]),
                ..DnsConfig::default()
            })
            .is_err(),
            "{server:?}"
        );
    }
    for text in ["", "a\nb", "a b", "a\tb", "#a", "a;b"] {
        assert!(
            resolv_conf(&DnsConfig {
                searches: strings(&[text]),
                ..DnsConfig::default()
            })
            .is_err(),
            "{text:?}"
        );
        assert!(
            resolv_conf(&DnsConfig {
                options: strings(&[text]),
                ..DnsConfig::default()
            })
            .is_err(),
            "{text:?}"
        );
        let entry = HostEntry {
            ip: "192.0.2.1".parse().unwrap(),
            names: strings(&[text]),
        };
        assert!(hosts("a", &[], &[entry], true).is_err(), "{text:?}");
    }
    let nameless = HostEntry {
        ip: "192.0.2.1".parse().unwrap(),
        names: Vec::new(),
    };
    assert!(hosts("a", &[], &[nameless], true).is_err());
}

#[test]
fn file_of_the_host_is_copied_through_a_symlink() {
    let temp = tempfile::tempdir().unwrap();
    let text = b"# made by hand\nnameserver 127.0.0.53\noptions trust-ad\n\xff\n";
    fs::write(temp.path().join("real"), text).unwrap();
    symlink("real", temp.path().join("resolv.conf")).unwrap();
    assert_eq!(host_file(&temp.path().join("resolv.conf")).unwrap(), text);
    assert_eq!(host_file(&temp.path().join("missing")).unwrap(), b"");
    assert!(host_file(temp.path()).is_err());
    let fifo = temp.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Without a writer, an ordinary open would wait for ever.
    assert!(host_file(&fifo).is_err());
}

#[test]
fn file_replacement_is_atomic_for_readers() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("hosts");
    // The temporary file that a kill between the write and the rename leaves.
    fs::write(temp.path().join("hosts.new"), "rubbish").unwrap();
    write(&path, b"one", 0o644, Durable::No).unwrap();
    let mut old = File::open(&path).unwrap();
    write(&path, b"two", 0o640, Durable::Yes).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
        0o640
    );
    let mut text = String::new();
    io::Read::read_to_string(&mut old, &mut text).unwrap();
    assert_eq!(text, "one");
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    assert!(write(&temp.path().join("missing/hosts"), b"", 0o644, Durable::No).is_err());
}

proptest! {
    #[test]
    fn any_value_cannot_add_a_line(name in "\\PC{0,12}|[a-z \n]{0,6}", server in "\\PC{0,12}|[0-9.:%\n]{0,12}", domain in "\\PC{0,12}|[a-z \n]{0,6}") {
        if let Ok(text) = hostname(&name) {
            prop_assert_eq!(text.lines().count(), 1);
        }
        let dns = DnsConfig { servers: vec![server], searches: vec![domain.clone()], options: vec![domain] };
        if let Ok(text) = resolv_conf(&dns) {
            prop_assert_eq!(text.lines().count(), 3);
        }
    }
}

#[test]
fn unset_dns_parts_come_from_the_host() {
    let host = b"# made by hand\nnameserver 192.0.2.1\nnameserver not-one\nnameserver 192.0.2.2 ; second\ndomain old.test\n\
        search a.test b.test # both\noptions ndots:2\noptions edns0 trust-ad\nsortlist 10.0.0.0\n";
    let words = |list: &[&str]| {
        list.iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    let all = DnsConfig {
        servers: words(&["192.0.2.1", "192.0.2.2"]),
        searches: words(&["a.test", "b.test"]),
        options: words(&["ndots:2", "edns0", "trust-ad"]),
    };
    assert_eq!(with_host_parts(DnsConfig::default(), host), all);
    let asked = DnsConfig {
        servers: words(&["9.9.9.9"]),
        ..DnsConfig::default()
    };
    assert_eq!(
        with_host_parts(asked.clone(), host),
        DnsConfig {
            servers: words(&["9.9.9.9"]),
            ..all
        }
    );
    assert_eq!(with_host_parts(asked.clone(), b""), asked);
}
