//! The packet rules that plugins have made by iptables: found by the names of networks and by addresses, and removed.

use std::io::Write;
use std::process::{Command, Stdio};

use super::{END_LIMIT, reserve, tell};
use crate::{host, prereq};

/// The packet rules of this machine, in `iptables-save` form.
#[derive(Debug, Default)]
pub(super) struct PacketRules {
    pub(super) nat: Vec<String>,
    filter: Vec<String>,
}

impl PacketRules {
    /// Reads those that `iptables` or `ip6tables` has made.
    ///
    /// # Panics
    /// When they cannot be read: what is there would be taken for gone.
    #[track_caller]
    pub(super) fn read(program: &str) -> Self {
        let mut read = Err(String::new());
        // Others may change rules at any moment.
        let is_read = host::eventually(END_LIMIT, || {
            read = Self::try_read(program);
            read.is_ok()
        });
        assert!(is_read, "{read:?}");
        read.unwrap_or_default()
    }

    /// The same for a clean-up, which goes on without them.
    fn read_or_tell(program: &str) -> Self {
        Self::try_read(program).unwrap_or_else(|error| {
            tell(&error);
            Self::default()
        })
    }

    fn try_read(program: &str) -> Result<Self, String> {
        let mut save = Command::new(prereq::require(&format!("{program}-save"), "iptables"));
        let output = save
            .output()
            .map_err(|error| format!("{save:?}: {error}"))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{save:?}: {errors}"));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let table = |name: &str| {
            let lines = text
                .lines()
                .skip_while(|line| *line != name)
                .take_while(|line| *line != "COMMIT");
            lines
                .filter(|line| line.starts_with("-A "))
                .map(str::to_owned)
                .collect()
        };
        Ok(Self {
            nat: table("*nat"),
            filter: table("*filter"),
        })
    }

    /// The rules of the nat table that the plugins marked with one of these names.
    pub(super) fn marked(&self, names: &[&str]) -> impl Iterator<Item = &String> {
        let is_marked = move |rule: &&String| names.iter().any(|name| rule.contains(name));
        self.nat.iter().filter(is_marked)
    }

    /// The rules by which the CNI firewall plugin accepts packets of addresses with this prefix.
    pub(super) fn accepting(&self, beginning: &str) -> impl Iterator<Item = &String> {
        let address = format!(" {beginning}");
        self.filter
            .iter()
            .filter(move |rule| rule.starts_with("-A CNI-") && rule.contains(&address))
    }
}

/// The rules that accept packets of addresses with one of these prefixes.
fn forward_rules(beginnings: &[String]) -> Vec<String> {
    let rules = PacketRules::read_or_tell("iptables");
    let accepting = beginnings.iter().flat_map(|one| rules.accepting(one));
    accepting.cloned().collect()
}

/// Removes these rules, and returns those that are left. They have no name, so those of a range that another test has by now stay.
pub(super) fn clear_forward_rules(beginnings: &[String]) -> Vec<String> {
    let mut beginnings = beginnings.to_vec();
    // Nobody takes a range in between.
    let mut reservations = Vec::new();
    beginnings.retain(|beginning| {
        let reservation = reserve(beginning);
        let is_free = reservation.is_some();
        if !is_free {
            tell(&format!("rules for {beginning}0/24: another test has it"));
        }
        reservations.extend(reservation);
        is_free
    });
    let rules = forward_rules(&beginnings);
    if rules.is_empty() {
        return rules;
    }
    let deletions: String = rules
        .iter()
        .map(|rule| rule.replacen("-A ", "-D ", 1) + "\n")
        .collect();
    restore("iptables", &format!("*filter\n{deletions}COMMIT\n"));
    let left = forward_rules(&beginnings).into_iter();
    left.map(|rule| format!("iptables rule {rule}")).collect()
}

/// The rules of the nat table that carry one of these names.
pub(super) fn rules(program: &str, names: &[&str]) -> Vec<String> {
    let rules = PacketRules::read_or_tell(program);
    rules.marked(names).cloned().collect()
}

/// Removes the rules that carry one of these names, and the chains of single containers that they led to. The
/// chains that all networks share (`CNI-HOSTPORT-*`) stay: another network may be about to use them.
pub(super) fn clear_rules(program: &str, names: &[&str]) {
    let rules = rules(program, names);
    if rules.is_empty() {
        return;
    }
    let mut script = String::from("*nat\n");
    let mut chains: Vec<&str> = Vec::new();
    for rule in &rules {
        let source = rule.split(' ').nth(1).unwrap_or_default();
        if !is_own_chain(source) {
            script.push_str(&rule.replacen("-A ", "-D ", 1));
            script.push('\n');
        }
        let target = rule
            .split(" -j ")
            .last()
            .and_then(|rest| rest.split(' ').next())
            .unwrap_or_default();
        chains.extend(
            [source, target]
                .into_iter()
                .filter(|chain| is_own_chain(chain)),
        );
    }
    chains.sort_unstable();
    chains.dedup();
    for action in ["-F", "-X"] {
        for chain in &chains {
            script.push_str(&format!("{action} {chain}\n"));
        }
    }
    script.push_str("COMMIT\n");
    restore(program, &script);
}

fn restore(program: &str, script: &str) {
    let restore = prereq::require(&format!("{program}-restore"), "iptables");
    let child = Command::new(restore)
        .args(["--noflush", "-w", "10"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    if let Ok(mut child) = child {
        if let Some(mut input) = child.stdin.take() {
            // If the program exits early, the rules that stay are reported.
            let _ = input.write_all(script.as_bytes());
        }
        let _ = child.wait();
    }
}

fn is_own_chain(chain: &str) -> bool {
    chain.starts_with("CNI-")
        && !chain.starts_with("CNI-HOSTPORT-")
        && chain != "CNI-FORWARD"
        && chain != "CNI-ADMIN"
}
