//! The default AppArmor profile.

use std::borrow::Cow;

/// The name of the default profile.
pub(crate) const DEFAULT_PROFILE: &str = "switchyard-default";

/// Its text, in the language of apparmor.d(5).
const TEXT: &str = include_str!("switchyard-default");

/// The rule of the text before that of another peer.
const BEFORE_PEER: &str = "  signal (receive) peer=unconfined,\n";

/// Peers that the text admits.
const ADMITTED: [&str; 6] = [
    "unconfined",
    "runc",
    "crun",
    "podman",
    "containerd",
    DEFAULT_PROFILE,
];

/// The beginning of the names of further ones.
const ADMITTED_SHIMS: &str = "containerd-shim";

/// The text of the profile, which also lets a peer send signals. Where containerd's profile is enforced, the first process of a container ends
/// the steps of its start by glibc's signal to threads that still have that profile.
pub(crate) fn text(peer: Option<&str>) -> Cow<'static, str> {
    match peer {
        None => TEXT.into(),
        Some(peer) => {
            let rules = format!(
                "{BEFORE_PEER}  signal (receive) peer=\"{peer}\",\n  signal (send) set=(rtmin+1) peer=\"{peer}\",\n"
            );
            TEXT.replacen(BEFORE_PEER, &rules, 1).into()
        }
    }
}

/// The profile that confines a process, by the content of its `attr/current`, if the text does not admit it by itself. None for a
/// stack of profiles and for one of another namespace of AppArmor, as in a container, which a rule does not name in this way. Pure.
pub(crate) fn further_peer(label: &str) -> Option<&str> {
    let label = label.trim_end_matches(['\0', '\n']);
    let name = label.rsplit_once(" (").map_or(label, |(name, _)| name);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-/".contains(&byte);
    let is_further = !name.is_empty()
        && name.bytes().all(is_plain)
        && !ADMITTED.contains(&name)
        && !name.starts_with(ADMITTED_SHIMS);
    is_further.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_is_named_only_if_the_text_does_not_admit_it() {
        for (label, peer) in [
            (
                "snap.microk8s.daemon-containerd (complain)\n",
                Some("snap.microk8s.daemon-containerd"),
            ),
            (
                "snap.docker.dockerd (enforce)\n",
                Some("snap.docker.dockerd"),
            ),
            (
                "/usr/local/bin/containerd (enforce)\0",
                Some("/usr/local/bin/containerd"),
            ),
            ("vendor//containerd (enforce)\n", Some("vendor//containerd")),
            ("k3s", Some("k3s")),
            ("unconfined\n", None),
            ("runc (unconfined)\n", None),
            ("containerd (enforce)\n", None),
            ("containerd-shim-runc-v2 (enforce)\n", None),
            ("switchyard-default (enforce)\n", None),
            // In a container of LXC, stacked, and what would end the rule.
            (
                "lxc-101_</var/lib/lxc>//&:lxc-101_<-var-lib-lxc>:unconfined (enforce)\n",
                None,
            ),
            ("a//&b (enforce)\n", None),
            ("a\", capability, (enforce)\n", None),
            ("snap.* (enforce)\n", None),
            ("\n", None),
            ("", None),
        ] {
            assert_eq!(further_peer(label), peer, "{label:?}");
        }
    }

    #[test]
    fn rules_for_a_peer_stand_among_the_others() {
        assert!(
            TEXT.contains(&format!("\nprofile {DEFAULT_PROFILE} ")),
            "{TEXT}"
        );
        assert_eq!(text(None), TEXT);
        let with = text(Some("snap.microk8s.daemon-containerd"));
        let rules = "  signal (receive) peer=\"snap.microk8s.daemon-containerd\",\n  \
             signal (send) set=(rtmin+1) peer=\"snap.microk8s.daemon-containerd\",\n";
        assert_eq!(with.replacen(rules, "", 1), TEXT);
        assert_eq!(with.len(), TEXT.len() + rules.len());
        for peer in ADMITTED {
            assert!(TEXT.contains(peer), "{peer}");
        }
        assert!(TEXT.contains(&format!("{ADMITTED_SHIMS}*")));
    }
}
