//! Bandwidth, kernel parameters, events, and namespaces.

use std::path::Path;

use super::super::uapi::RTM_NEWLINK;
use super::*;
use crate::testing::run;

#[test]
fn events_of_a_group_are_received() {
    in_private_netns(|| {
        // RTMGRP_LINK.
        let mut events = Socket::open_for_events(Family::Route, 1).unwrap();
        socket().run_one(&bridge("swtbr").create()).unwrap();
        let is_made = |event: &Received| {
            event.kind == RTM_NEWLINK
                && Link::read(&event.body).is_some_and(|link| link.name == "swtbr")
        };
        assert!((0..10).any(|_| events.events().unwrap().iter().any(is_made)));
    });
}

#[test]
fn bandwidth_is_limited_in_both_directions() {
    let tc = |words: &[&str]| run("tc", "iproute2", words);
    in_private_netns(|| {
        let mut host = socket();
        let ifb = Ifb {
            link: NewLink::new(name("swt-ifb")),
        };
        let veth = pair(None);
        host.run(&[veth.create(), ifb.create()]).unwrap();
        let port = found(&mut host, "swt0").index;
        let ifb = found(&mut host, "swt-ifb").index;
        let rate = |bits| Rate::new(bits, 800_000, 1_500).unwrap();
        let mut requests = vec![
            limit(port, rate(8_000_000)),
            limit(ifb, rate(80_000_000_000)),
        ];
        requests.extend(redirect_ingress(port, ifb));
        host.run(&requests).unwrap();
        // Another limit is instead of the first one.
        host.run_one(&limit(port, rate(16_000_000))).unwrap();
        let shown = tc(&["qdisc", "show", "dev", "swt0"]);
        assert!(
            shown.contains("tbf") && shown.contains("rate 16Mbit"),
            "{shown}"
        );
        assert!(shown.contains("ingress"), "{shown}");
        let shown = tc(&["qdisc", "show", "dev", "swt-ifb"]);
        assert!(shown.contains("rate 80Gbit"), "{shown}");
        let shown = tc(&["filter", "show", "dev", "swt0", "parent", "ffff:"]);
        assert!(
            shown.contains("mirred") && shown.contains("swt-ifb"),
            "{shown}"
        );
        host.run(&[delete_limit(port), delete_limit(port)]).unwrap();
        assert!(!tc(&["qdisc", "show", "dev", "swt0"]).contains("tbf"));
    });
}

#[test]
fn settings_are_those_of_the_namespace_of_the_thread() {
    in_private_netns(|| {
        let mut host = socket();
        let veth = pair(None);
        host.run_one(&veth.create()).unwrap();
        let settings = [(Ipv4Setting::RouteLocalnet, 1), (Ipv4Setting::RpFilter, 2)];
        host.run_one(&set_ipv4(&named("swt0"), &settings)).unwrap();
        let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
        for (file, expected) in [("route_localnet", "1"), ("rp_filter", "2")] {
            let path = format!("/proc/sys/net/ipv4/conf/swt0/{file}");
            assert_eq!(read(&path).unwrap(), expected, "{file}");
        }
        let eth0 = name("eth0");
        let missing = set_ipv6(&eth0, Ipv6Setting::AcceptRa, 0).unwrap_err();
        assert!(
            matches!(missing, NetlinkError::Parameter { .. }),
            "it is in the other namespace"
        );
        veth.peer_namespace
            .run(|| {
                set_ipv6(&eth0, Ipv6Setting::AcceptRa, 0).unwrap();
                let accepted = read("/proc/sys/net/ipv6/conf/eth0/accept_ra").unwrap();
                assert_eq!(accepted, "0");
                // A new namespace has what the first one has.
                std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
                assert!(!is_forwarding(IpFamily::V4).unwrap());
                assert!(enable_forwarding(IpFamily::V4).unwrap());
                assert!(!enable_forwarding(IpFamily::V4).unwrap());
                assert!(is_forwarding(IpFamily::V4).unwrap());
            })
            .unwrap();
    });
}

#[test]
fn namespace_that_is_none_or_whose_work_panics_is_an_error() {
    let error = NetNs::open(Path::new("/nowhere/netns")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot open the network namespace /nowhere/netns"
    );
    for file in ["/dev/null", "/proc/self/ns/mnt", "/etc"] {
        let namespace = NetNs::open(Path::new(file)).unwrap();
        let error = namespace.run(|| ()).unwrap_err();
        assert!(
            matches!(error, NetlinkError::Namespace { .. }),
            "{file}: {error:?}"
        );
        let error = Socket::open_in(&namespace, Family::Route).unwrap_err();
        assert!(error.to_string().contains(file), "{error}");
    }
    in_private_netns(|| {
        let namespace = NetNs::current().unwrap();
        let ended: Result<(), NetlinkError> = namespace.run(|| panic!("it is a test"));
        let error = ended.unwrap_err();
        assert!(
            matches!(error, NetlinkError::ThreadLost { .. }),
            "{error:?}"
        );
    });
}
